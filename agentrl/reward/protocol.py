"""What reward services are asked and how their answers are read. Pure; an answer is taken whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from agentrl.errors import RewardError
from agentrl.messages import Message
from agentrl.types import Episode


class Item(Struct, frozen=True, kw_only=True):
    """One episode, as a service sees it. `id` is the idempotency key. Our clients send every field."""

    id: str
    task: dict[str, Any] = {}
    messages: list[dict[str, Any]] = []  # the whole conversation, OpenAI form
    text: str = ""  # of the last assistant message
    reward_so_far: float | None = None  # the environment's
    metadata: dict[str, Any] = {}

    @property
    def options(self) -> dict[str, Any]:
        """The task's: where the right answer is, for who judges by one."""
        options = self.task.get("options")
        return options if isinstance(options, dict) else {}


class Score(Struct, frozen=True, kw_only=True):
    """A service's answer for one item. A reward of None is missing; `error` says why when it is a failure."""

    id: str
    reward: float | None = None
    components: dict[str, float | None] = {}
    error: str | None = None
    calls: list[float | None] | UnsetType = UNSET  # of the assistant messages in their order, where they are scored


class _Answer(Struct):
    results: list[Score]


class BrokenAnswer(RewardError):
    """What a service sent is not an answer to what it was asked. Another try may get one."""


class _OpenRLHFAnswer(Struct):
    rewards: list[float | None]


class _NeMoGymAnswer(Struct):
    reward: float
    mask_sample: bool = False  # the reward is no measurement of the policy: something else failed
    failure_kind: str | None = None
    failure_reason: str | None = None
    reward_components: dict[str, float] = {}


def item_of(episode: Episode, group_id: str = "") -> Item:
    answers = [Message(message) for message in episode.messages if message.get("role") == "assistant"]
    return Item(
        id=episode.session_id,
        task={name: value for name, value in msgspec.to_builtins(episode.task).items() if value is not None},
        messages=episode.messages,
        text=answers[-1].text if answers else "",
        reward_so_far=episode.reward,
        metadata={
            "stop_reason": episode.stop_reason.value,
            "turns": episode.turns,
            **({"group_id": group_id} if group_id else {}),
        },
    )


def outside_of(bounds: tuple[float, float] | None, reward: float | None) -> str | None:
    """Why a reward breaks the bounds that are declared for it; None when it does not."""
    if bounds is None or reward is None or bounds[0] <= reward <= bounds[1]:
        return None
    return f"the reward {reward} is outside of its bounds {bounds[0]:g} to {bounds[1]:g}"


def request_body(items: Sequence[Item]) -> dict[str, Any]:
    return {"items": [msgspec.to_builtins(item) for item in items]}


def read_answer(service: str, items: Sequence[Item], data: bytes) -> dict[str, Score]:
    """Scores by id, in whatever order they came.

    Raises BrokenAnswer naming what was expected and received: no JSON, another number of results than of items, unknown
    or repeated ids, wrong types. A score that is not finite, or of another number of messages than there are, becomes
    an error of its own item.
    """
    results = _convert(service, data, _Answer).results
    _check_count(service, len(items), len(results))
    expected, received = {item.id for item in items}, {score.id for score in results}
    if expected != received:
        unknown = sorted(received - expected)[:3]
        raise BrokenAnswer(
            f"reward service {service} answered for {len(received)} of {len(expected)} ids"
            + (f", and for unknown ones such as {unknown}" if unknown else "")
            + "; answer each item once, under its own id"
        )
    by_id = {item.id: item for item in items}
    return {score.id: _checked(service, by_id[score.id], score) for score in results}


def openrlhf_body(items: Sequence[Item]) -> dict[str, Any]:
    """OpenRLHF's remote reward model: whole texts, prompts and labels (a task's option `label`) in parallel lists."""
    prompts = ["\n".join(Message(message).text for message in item.messages[:-1]) for item in items]
    queries = [f"{prompt}\n{item.text}" for prompt, item in zip(prompts, items, strict=True)]
    labels = [item.task.get("options", {}).get("label") for item in items]
    return {"query": queries, "prompts": prompts, "labels": labels}


def read_openrlhf(service: str, items: Sequence[Item], data: bytes) -> dict[str, Score]:
    """Scores by id from OpenRLHF's `{"rewards": [...]}`, by position. Raises BrokenAnswer as `read_answer` does."""
    rewards = _convert(service, data, _OpenRLHFAnswer).rewards
    _check_count(service, len(items), len(rewards))
    paired = zip(items, rewards, strict=True)
    return {item.id: _checked(service, item, Score(id=item.id, reward=reward)) for item, reward in paired}


def nemo_gym_body(item: Item) -> dict[str, Any]:
    """NeMo Gym's `/verify`: the task's options beside an OpenAI response and the input that it answers.

    The response is what came since the last message of a user: its verifiers read `Response.output_text`, which fails
    at a user's message among the output. Earlier turns are input, as in OpenAI's Responses API.
    """
    roles = [message.get("role") for message in item.messages]
    since = max((at for at, role in enumerate(roles, 1) if role not in ("assistant", "tool")), default=0)
    told, turns = item.messages[:since], item.messages[since:]
    output = [part for index, message in enumerate(turns) for part in _response_items(index, message)]
    return {
        **item.options,
        "responses_create_params": {"input": [part for message in told for part in _input(message)]},
        "response": {
            "id": item.id, "created_at": 0.0, "model": "policy", "object": "response", "output": output,
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        },
    }  # fmt: skip


def read_nemo_gym(service: str, items: Sequence[Item], data: bytes) -> dict[str, Score]:
    """The score in a verification's answer; missing where the verifier masks it. Raises BrokenAnswer for no answer."""
    (item,) = items
    answer = _convert(service, data, _NeMoGymAnswer)
    error = None
    if answer.mask_sample:
        why = ": ".join(part for part in (answer.failure_kind, answer.failure_reason) if part)
        error = f"its verifier says that the reward is no measurement ({why or 'without a reason'})"
    score = Score(id=item.id, reward=answer.reward, components=dict(answer.reward_components), error=error)
    return {item.id: _checked(service, item, score)}


def _input(message: dict[str, Any]) -> list[dict[str, Any]]:
    said = Message(message)
    if message.get("role") == "tool":
        return [_called(message)]
    calls = [_call(call) for call in said.tool_calls]
    return [{"role": message.get("role"), "content": said.text}, *calls] if said.text or not calls else calls


def _response_items(index: int, message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message of the policy or of a tool as items of the Responses API."""
    said = Message(message)
    if message.get("role") == "tool":
        return [{"id": f"told_{index}", "status": "completed", **_called(message)}]
    text = {"type": "output_text", "text": said.text, "annotations": []}
    items: list[dict[str, Any]] = []
    if said.text or not said.tool_calls:
        items.append(
            {"type": "message", "id": f"msg_{index}", "role": "assistant", "status": "completed", "content": [text]}
        )
    return items + [_call(call) for call in said.tool_calls]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    named = {key: call.get("function", {}).get(key, "") for key in ("name", "arguments")}
    return {"type": "function_call", "call_id": call.get("id", ""), **named}


def _called(message: dict[str, Any]) -> dict[str, Any]:
    call_id, output = message.get("tool_call_id", ""), Message(message).text
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _convert(service: str, data: bytes, kind: type[Any]) -> Any:
    try:
        # Python's own parser: services in Python write NaN, and one NaN must not cost the whole batch.
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise BrokenAnswer(f"reward service {service} broke its contract: {error}; it sent {data[:100]!r}") from error


def _check_count(service: str, expected: int, received: int) -> None:
    if expected != received:
        raise BrokenAnswer(f"reward service {service} sent {received} results for {expected} items; send one per item")


def _checked(service: str, item: Item, score: Score) -> Score:
    """The score, or the error that it is. A score of messages alone is their sum."""
    if (why := fault_of(item, score)) is not None:
        return Score(id=score.id, error=f"reward service {service}: {why}")
    return summed(score)


def fault_of(item: Item, score: Score) -> str | None:
    """Why the score is none: its own error, a number that is not finite, another number of calls than of messages."""
    calls = [] if score.calls is UNSET else score.calls
    values = {"reward": score.reward, **score.components} | {f"calls[{i}]": value for i, value in enumerate(calls)}
    bad = [name for name, value in values.items() if value is not None and not math.isfinite(value)]
    messages = sum(message.get("role") == "assistant" for message in item.messages)
    if score.error is not None:
        return score.error
    if bad:
        return f"{bad[0]} is {values[bad[0]]}, not a finite number"
    if score.calls is not UNSET and len(calls) != messages:
        return f"{len(calls)} rewards for {messages} assistant messages; send one for each, null where there is none"
    return None


def summed(score: Score) -> Score:
    """A score of messages alone is their sum."""
    calls = [] if score.calls is UNSET else score.calls
    if score.reward is None and calls and None not in calls:
        return msgspec.structs.replace(score, reward=math.fsum(value for value in calls if value is not None))
    return score
