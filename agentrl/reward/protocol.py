"""What reward services are asked and how their answers are read. Pure; an answer is taken whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from agentrl.errors import RewardError
from agentrl.messages import Message
from agentrl.types import Episode


class Item(Struct, frozen=True, kw_only=True):
    """One episode, as a service sees it. `id` is the idempotency key."""

    id: str
    task: dict[str, Any]
    messages: list[dict[str, Any]]  # the whole conversation, OpenAI form
    text: str  # of the last assistant message
    reward_so_far: float | None  # the environment's
    metadata: dict[str, Any] = {}


class Score(Struct, frozen=True, kw_only=True):
    """A service's answer for one item. A reward of None is missing; `error` says why when it is a failure."""

    id: str
    reward: float | None = None
    components: dict[str, float | None] = {}
    error: str | None = None


class _Answer(Struct):
    results: list[Score]


class _OpenRLHFAnswer(Struct):
    rewards: list[float | None]


def item_of(episode: Episode) -> Item:
    answers = [Message(message) for message in episode.messages if message.get("role") == "assistant"]
    return Item(
        id=episode.session_id,
        task=msgspec.to_builtins(episode.task),
        messages=episode.messages,
        text=answers[-1].text if answers else "",
        reward_so_far=episode.reward,
        metadata={"stop_reason": episode.stop_reason.value, "turns": episode.turns},
    )


def request_body(items: Sequence[Item]) -> dict[str, Any]:
    return {"items": [msgspec.to_builtins(item) for item in items]}


def read_answer(service: str, items: Sequence[Item], data: bytes) -> dict[str, Score]:
    """Scores by id, in whatever order they came.

    Raises RewardError naming what was expected and received: no JSON, another number of results than of items, unknown
    or repeated ids, wrong types. A score that is not finite becomes an error of its own item.
    """
    results = _convert(service, data, _Answer).results
    _check_count(service, len(items), len(results))
    expected, received = {item.id for item in items}, {score.id for score in results}
    if expected != received:
        unknown = sorted(received - expected)[:3]
        raise RewardError(
            f"reward service {service} answered for {len(received)} of {len(expected)} ids"
            + (f", and for unknown ones such as {unknown}" if unknown else "")
            + "; answer each item once, under its own id"
        )
    return {score.id: _finite(service, score) for score in results}


def openrlhf_body(items: Sequence[Item]) -> dict[str, Any]:
    """OpenRLHF's remote reward model: whole texts, prompts and labels (a task's option `label`) in parallel lists."""
    prompts = ["\n".join(Message(message).text for message in item.messages[:-1]) for item in items]
    queries = [f"{prompt}\n{item.text}" for prompt, item in zip(prompts, items, strict=True)]
    labels = [item.task.get("options", {}).get("label") for item in items]
    return {"query": queries, "prompts": prompts, "labels": labels}


def read_openrlhf(service: str, items: Sequence[Item], data: bytes) -> dict[str, Score]:
    """Scores by id from OpenRLHF's `{"rewards": [...]}`, by position. Raises RewardError as `read_answer` does."""
    rewards = _convert(service, data, _OpenRLHFAnswer).rewards
    _check_count(service, len(items), len(rewards))
    paired = zip(items, rewards, strict=True)
    return {item.id: _finite(service, Score(id=item.id, reward=reward)) for item, reward in paired}


def _convert(service: str, data: bytes, kind: type[Any]) -> Any:
    try:
        # Python's own parser: services in Python write NaN, and one NaN must not cost the whole batch.
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise RewardError(f"reward service {service} broke its contract: {error}; it sent {data[:100]!r}") from error


def _check_count(service: str, expected: int, received: int) -> None:
    if expected != received:
        raise RewardError(f"reward service {service} sent {received} results for {expected} items; send one per item")


def _finite(service: str, score: Score) -> Score:
    values = {"reward": score.reward, **score.components}
    bad = [name for name, value in values.items() if value is not None and not math.isfinite(value)]
    if score.error is None and not bad:
        return score
    why = score.error or f"{bad[0]} is {values[bad[0]]}, not a finite number"
    return Score(id=score.id, error=f"reward service {service}: {why}")
