"""Rewards that a group's episodes get together: ranks, comparisons, a prize for being different."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.env.contract import raised
from agentrl.env.loops import LoopThread
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import AgentRLError, EnvironmentFault
from agentrl.rollout.ports import Gateway
from agentrl.types import Episode, Group

log = logging.getLogger(__name__)

COMPONENT = "group"


async def score_group(
    hook: Callable[..., Any], group: Group, gateway: Gateway, *, timeout_s: float, hung: HungCalls
) -> None:
    """Calls `hook(episodes)` once, with every episode of the group in order, and puts its rewards in place of theirs.

    An episode that a failure ended keeps its missing reward, whatever the hook says. When the hook fails, every reward
    of the group is missing, and each episode's `error` says why.
    """
    error = None
    try:
        rewards = _checked(group, await _asked(hook, group, timeout_s, hung))
    except EnvironmentFault as fault:
        log.exception("group %s: %s", group.group_id, fault)
        rewards, error = [None] * len(group.episodes), str(fault)
    scored = [
        (episode, reward)
        for episode, reward in zip(group.episodes, rewards, strict=True)
        if episode.stop_reason.by_policy and episode.session_id
    ]
    group.scored_together = True
    for episode, _ in scored:
        episode.error = error or episode.error
    await asyncio.gather(*(_give(gateway, episode, reward) for episode, reward in scored))


async def _asked(hook: Callable[..., Any], group: Group, timeout_s: float, hung: HungCalls) -> Any:
    name = f"{group.task.env_id}.score_group"
    thread = (LoopThread if inspect.iscoroutinefunction(hook) else CallThread)("agentrl-score-group", hung)
    try:
        return await thread.run(lambda: hook(list(group.episodes)), timeout_s, name)
    except EnvironmentFault:
        raise
    except Exception as error:
        raise raised(group.task.env_id, "score_group", error) from error
    finally:
        thread.close()


def _checked(group: Group, rewards: Any) -> list[float | None]:
    what = f"{group.task.env_id}.score_group"
    if not isinstance(rewards, Sequence) or len(rewards) != len(group.episodes):
        got = f"{len(rewards)} rewards" if isinstance(rewards, Sequence) else f"a {type(rewards).__name__}"
        raise EnvironmentFault(f"{what} gave {got} for {len(group.episodes)} episodes; give one each, in their order")
    found: list[float | None] = []
    for reward in rewards:
        try:
            found.append(None if reward is None else float(reward))
        except Exception as error:  # a stranger's `__float__`
            raise EnvironmentFault(f"{what} gave a reward of type {type(reward).__name__}; give numbers") from error
        if found[-1] is not None and not math.isfinite(found[-1]):
            raise EnvironmentFault(f"{what} gave the reward {found[-1]}; give finite numbers, or None")
    return found


async def _give(gateway: Gateway, episode: Episode, reward: float | None) -> None:
    """A reward that the store does not take is missing."""
    components = {"env": episode.reward, COMPONENT: reward}
    episode.reward = reward
    try:
        await gateway.set_reward(episode.session_id, reward, components)
    except AgentRLError as fault:
        log.exception("session %s: %s", episode.session_id, fault)
        episode.reward, episode.error = None, str(fault)
