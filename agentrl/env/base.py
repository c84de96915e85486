"""The environment that an author writes: a gymnasium environment whose observations and actions are chat messages."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np

from agentrl.env.bridge import bridged, is_async
from agentrl.env.roles import Role
from agentrl.env.space import ActionSpace, ObservationSpace
from agentrl.messages import Message
from agentrl.types import Limits, Task

Isolation = Literal["thread", "process"]
"""Where a run has an environment: in a thread of the rollout worker, or in a process of its own."""

Observation = list[Message]
"""The chat messages that are new since the last action, in OpenAI form."""

ResetResult = tuple[Observation, dict[str, Any]]
"""(observation, info)."""

StepResult = tuple[Observation, float | None, bool, bool, dict[str, Any]]
"""(observation, reward, terminated, truncated, info). A reward of None is missing, which is not 0."""


class Env(gymnasium.Env[Observation, Message | str]):
    """Subclasses give `reset(*, seed, options) -> (observation, info)` and `step(action) -> StepResult`.

    An action is an assistant message in OpenAI form, or plain text. `reset`, `step` and `close` may be `async def`;
    they then also work without `await` outside an event loop, which is how gymnasium's wrappers call them. In a
    run, plain methods are called in a thread of the environment's own, so they may block.

    `options` holds the task's options; its key "split" says which split the task is from.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    isolation: ClassVar[Isolation] = "thread"
    """What a run does unless `rollout.isolation` says otherwise. Ask for "process" when an episode may crash, spin in C
    code, leak memory or start processes; constructor arguments are then given as JSON."""

    limits: ClassVar[Limits] = Limits()
    """What an episode may use; the run's limits and the task's hold as well, the tighter of each."""

    roles: ClassVar[Mapping[str, Role]] = {}
    """Its speakers, when there is more than one. The first speaks first; `info["role"]` of a step says who is next.

    The observation is then for that role, the step's reward is that of the role that has spoken, and
    `info["role_rewards"]`, a reward for each role named in it, comes on top. `tools` is read when a role first speaks.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("reset", "step", "close"):
            method = cls.__dict__.get(name)
            if method is not None and is_async(method):
                setattr(cls, name, bridged(method))

    @cached_property
    def observation_space(self) -> ObservationSpace:
        return ObservationSpace()

    @cached_property
    def action_space(self) -> ActionSpace:
        return ActionSpace()

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools offered to the policy, as OpenAI's `tools`. Read after each `reset`."""
        return []

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterator[Task]:
        """The tasks of a split, in an order that `seed` fixes. May be endless; one that ends is an epoch.

        By default they differ in their seeds only, without end. A task's `seed` and `options` are what `reset` is
        given. Ids are unique within a split; `env_id` and `split` are filled in for you. Tasks that depend on what the
        constructor is given: take it as a parameter `env_kwargs`, a mapping with a default of None. A run that is
        resumed leaves out the tasks that it has drawn; with a parameter `start`, 0 by default, do so yourself.
        """
        rng = np.random.default_rng([seed, zlib.crc32(split.encode())])
        for index in itertools.count():
            yield Task(id=f"{split}-{seed}-{index}", seed=int(rng.integers(2**53)), split=split)

    @classmethod
    def placed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The constructor's arguments as they work from any working directory; asked where a run is started."""
        return dict(options)

    def is_async(self, method: str) -> bool:
        """Whether `reset`, `step` or `close` of this environment is to be awaited, by its name."""
        return is_async(_function(self, method))


def _function(env: Env, method: str) -> Callable[..., Any]:
    return getattr(type(env), method)
