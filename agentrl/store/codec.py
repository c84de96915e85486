"""Trajectories to table rows and back, exactly.

A call's prompt is stored as (base call, ids kept of its prompt + sample, ids after them) and a row's ids as the call
that ends it, so that a session of n turns costs its own length and not n times that. What calls say of a row's tokens
is not stored again with the row, where it follows from them exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from agentrl.errors import StoreError
from agentrl.exact_json import dumps, dumps_messages
from agentrl.store.arrays import as_ids, pack_floats, pack_ints, pack_mask, unpack
from agentrl.types import Call, Row, Sampling, Segment, Task, Trajectory, VersionSpan

Columns = dict[str, Any]
Entry = Mapping[Any, Any]
"""One row of a table by column name: `Columns`, or SQLAlchemy's RowMapping."""

FOLLOWS = b""
"""Stands for a row's mask and logprobs that are those of `_from_calls`."""

_NEUTRAL = msgspec.to_builtins(Sampling())


class Encoded(Struct, kw_only=True):
    """One trajectory as the columns of its tables, calls and rows in order."""

    header: Columns
    calls: list[Columns]
    rows: list[Columns]


def encode(trajectory: Trajectory) -> Encoded:
    """Raises StoreError naming the session and what of it cannot be stored (a NaN reward, an id past 32 bits …)."""
    try:
        sequences: list[list[int]] = []
        calls = [_encode_call(call, sequences) for call in trajectory.calls]
        rows = [_encode_row(row, trajectory.calls, sequences) for row in trajectory.rows]
        return Encoded(header=_encode_header(trajectory), calls=calls, rows=rows)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise StoreError(f"trajectory {trajectory.session_id!r} cannot be stored: {error}") from error


def decode(header: Entry, calls: Sequence[Entry], rows: Sequence[Entry]) -> Trajectory:
    """Raises StoreError naming the session when its columns are damaged."""
    try:
        sequences: list[np.ndarray] = []
        of_session = [_decode_call(columns, sequences) for columns in calls]
        return Trajectory(
            session_id=header["session_id"],
            task=None if header["task"] is None else decode_task(header["task"]),
            mode=header["mode"],
            stop_reason=header["stop_reason"],
            reward=header["reward"],
            components=_from_json(header["components"], dict[str, float | None]),
            calls=of_session,
            rows=[_decode_row(columns, of_session, sequences) for columns in rows],
            dropped=_from_json(header["dropped"], dict[str, int]),
            metadata=_from_json(header["metadata"], dict[str, Any]),
            created_at=float(header["created_at"]),
            finished_at=float(header["finished_at"]),
        )
    except (TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise StoreError(f"stored trajectory {header['session_id']!r} is damaged: {error}") from error


def encode_task(task: Task) -> str:
    return dumps(msgspec.to_builtins(task))


def decode_task(text: str) -> Task:
    return msgspec.json.decode(text, type=Task)


def encode_reward(reward: float | None, components: Mapping[str, float | None]) -> Columns:
    """Raises ValueError for a reward or a component that is not a finite number: it would be read back as missing."""
    _check_score("reward", reward)
    for name, value in components.items():
        _check_score(f"component {name!r}", value)
    return {"reward": reward, "components": dumps(dict(components))}


def _check_score(name: str, value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{name} is {value}; a score is a finite number, or null when it is missing")


def group_of(trajectory: Trajectory) -> str | None:
    group_id = trajectory.metadata.get("group_id")
    if group_id is not None and not isinstance(group_id, str):
        raise ValueError(f"metadata['group_id'] is {group_id!r}, a string is needed")
    return group_id


def _encode_header(trajectory: Trajectory) -> Columns:
    return {
        "session_id": trajectory.session_id,
        "group_id": group_of(trajectory),
        "mode": trajectory.mode,
        "stop_reason": None if trajectory.stop_reason is None else str(trajectory.stop_reason),
        "task": None if trajectory.task is None else encode_task(trajectory.task),
        "dropped": dumps(trajectory.dropped),
        "metadata": dumps(trajectory.metadata),
        "created_at": trajectory.created_at,
        "finished_at": trajectory.finished_at,
        **encode_reward(trajectory.reward, trajectory.components),
    }


def _encode_call(call: Call, sequences: list[list[int]]) -> Columns:
    """`sequences[i]` is prompt + sample of call i; this call's is appended."""
    prompt = call.prompt_token_ids
    base, kept = call.parent, 0
    if base is None or not 0 <= base < len(sequences):
        base = len(sequences) - 1 if sequences else None
    if base is not None:
        kept = _common_prefix(sequences[base], prompt)
    sequences.append(prompt + call.token_ids)
    _check_score("reward", call.reward)
    return {
        "position": len(sequences) - 1,
        "call_id": call.call_id,
        "engine_id": call.engine_id,
        "parent": call.parent,
        "base": base,
        "kept": kept,
        "prompt_tail": pack_ints(prompt[kept:]),
        "prompt_digest": call.prompt_digest,
        "token_ids": pack_ints(call.token_ids),
        "logprobs": None if call.logprobs is None else pack_floats(call.logprobs),
        "versions": _encode_spans(call.versions),
        "segments": dumps([[part.engine_id, part.start, part.end] for part in call.segments])
        if call.segments
        else "[]",
        "finish_reason": call.finish_reason,
        "sampling": _encode_sampling(call.sampling),
        "messages": dumps_messages(call.messages),
        "message": dumps_messages(call.message),
        "conversation": call.conversation,
        "reward": call.reward,
        "untrainable": call.untrainable,
        "started_at": call.started_at,
        "ended_at": call.ended_at,
        "moments": str(call.moments),  # of whole numbers that is JSON
    }


def _encode_sampling(sampling: Sampling) -> str:
    """The fields that are not neutral. The calls of a session have one sampling as a rule, and those of a run few."""
    try:
        return _remembered(sampling)
    except TypeError:  # a grammar has no hash
        return _remembered.__wrapped__(sampling)


@lru_cache(256)
def _remembered(sampling: Sampling) -> str:
    return dumps({name: value for name, value in msgspec.to_builtins(sampling).items() if value != _NEUTRAL[name]})


def _decode_call(columns: Entry, sequences: list[np.ndarray]) -> Call:
    prompt = unpack(columns["prompt_tail"])
    if columns["base"] is not None:
        prompt = np.concatenate([sequences[columns["base"]][: columns["kept"]], prompt])
    sample = unpack(columns["token_ids"])
    sequences.append(np.concatenate([prompt, sample]))
    return Call(
        call_id=columns["call_id"],
        prompt_token_ids=prompt.tolist(),
        prompt_digest=columns["prompt_digest"],
        token_ids=sample.tolist(),
        logprobs=None if columns["logprobs"] is None else unpack(columns["logprobs"]).tolist(),
        versions=_decode_spans(columns["versions"]),
        finish_reason=columns["finish_reason"],
        engine_id=columns["engine_id"],
        sampling=_from_json(columns["sampling"], Sampling),
        message=_from_json(columns["message"], dict[str, Any]),
        parent=columns["parent"],
        reward=columns["reward"],
        untrainable=columns["untrainable"],
        segments=[Segment(*part) for part in _from_json(columns["segments"], list[tuple[str, int, int]])],
        messages=_from_json(columns["messages"], list[dict[str, Any]]),
        conversation=columns["conversation"],
        started_at=float(columns["started_at"]),
        ended_at=float(columns["ended_at"]),
        moments=_from_json(columns.get("moments") or "[]", list[int]),
    )


def _encode_row(row: Row, calls: Sequence[Call], sequences: Sequence[list[int]]) -> Columns:
    bases = [index for index, sequence in enumerate(sequences) if sequence == row.token_ids]
    for base in bases:
        if _from_calls(calls, base, row.versions) == (row.loss_mask, row.logprobs):
            return {
                "base": base,
                "token_ids": None,
                "loss_mask": FOLLOWS,
                "logprobs": FOLLOWS,
                "has_logprob": None,
                "versions": _encode_spans(row.versions),
            }
    values, has_logprob = _logprobs_of(row)
    return {
        "base": bases[0] if bases else None,
        "token_ids": None if bases else pack_ints(row.token_ids),
        "loss_mask": pack_mask(row.loss_mask),
        "logprobs": pack_floats(values),
        "has_logprob": None if has_logprob is None else pack_mask(has_logprob),
        "versions": _encode_spans(row.versions),
    }


def _from_calls(calls: Sequence[Call], leaf: int, spans: Sequence[VersionSpan]) -> tuple[list[int], list[float | None]]:
    """Mask and logprobs, [T] each, of a row that ends with call `leaf` and trains those calls of its path that one of
    the row's version spans begins with.
    """
    size = len(calls[leaf].prompt_token_ids) + len(calls[leaf].token_ids)
    mask = [0] * size
    logprobs: list[float | None] = [None] * size
    starts = {span.start for span in spans}
    index: int | None = leaf
    while index is not None:
        call, below = calls[index], index
        start = len(call.prompt_token_ids)
        if start in starts and call.logprobs is not None:
            end = start + len(call.token_ids)
            mask[start:end] = [1] * (end - start)
            logprobs[start:end] = call.logprobs
        index = call.parent if call.parent is not None and 0 <= call.parent < below else None
    return mask, logprobs


def _logprobs_of(row: Row) -> tuple[list[float], list[int] | None]:
    """The logprobs that are there, and which tokens have one: None where exactly those with mask 1 do."""
    present = [int(value is not None) for value in row.logprobs]
    return [value for value in row.logprobs if value is not None], None if present == row.loss_mask else present


def _decode_row(columns: Entry, calls: Sequence[Call], sequences: Sequence[np.ndarray]) -> Row:
    versions = _decode_spans(columns["versions"])
    if columns["loss_mask"] == columns["logprobs"] == FOLLOWS:
        ids, (loss_mask, logprobs) = sequences[columns["base"]], _from_calls(calls, columns["base"], versions)
        return Row(token_ids=ids.tolist(), loss_mask=loss_mask, logprobs=logprobs, versions=versions)
    mask = unpack(columns["loss_mask"])
    present = mask if columns["has_logprob"] is None else unpack(columns["has_logprob"])
    values = unpack(columns["logprobs"])
    if len(values) != np.count_nonzero(present):
        raise ValueError(f"a row holds {len(values)} logprobs for {np.count_nonzero(present)} tokens")
    recorded = iter(values.tolist())
    token_ids = sequences[columns["base"]] if columns["token_ids"] is None else unpack(columns["token_ids"])
    return Row(
        token_ids=token_ids.tolist(),
        loss_mask=mask.tolist(),
        logprobs=[next(recorded) if flag else None for flag in present.tolist()],
        versions=versions,
    )


def _common_prefix(left: list[int], right: list[int]) -> int:
    """How many ids both begin with: nearly always all of the left ones, which Python compares at once."""
    if left == right[: len(left)]:
        return len(left)
    length = min(len(left), len(right))
    different = np.flatnonzero(as_ids(left[:length]) != as_ids(right[:length]))
    return int(different[0]) if len(different) else length


def _encode_spans(spans: Sequence[VersionSpan]) -> str:
    return dumps([[span.version, span.start, span.end] for span in spans])


def _decode_spans(text: str) -> list[VersionSpan]:
    return [VersionSpan(*map(int, span)) for span in json.loads(text)]


def _from_json(text: str, kind: Any) -> Any:
    """Raises ValueError for what is no JSON of this type."""
    return msgspec.convert(json.loads(text), kind)
