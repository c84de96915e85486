"""What happened to a session, as events from which it can go on after the gateway died. Pure: no I/O.

A session's journal is `Opened`, then what came after in the order in which it came. An event is written as a msgpack
array `[kind, document, prompt, token ids, logprobs]`: what has text in it is a JSON document in ASCII, so that whatever
came over HTTP comes back equal; the arrays of a call are plain little-endian int32 and float64. Another form of it
raises the store's `SCHEMA_VERSION`.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import ne
from typing import Any, Literal

import msgspec
from msgspec import Struct

from agentrl.errors import StoreError
from agentrl.exact_json import dumps, dumps_messages
from agentrl.gateway.attempts import Asked
from agentrl.types import Call, Limits, Mode, Sampling, Task

_ARRAYS = ("prompt_token_ids", "token_ids", "logprobs")
_REST = tuple(name for name in Call.__struct_fields__ if name not in (*_ARRAYS, "sampling"))
_NEUTRAL = msgspec.to_builtins(Sampling())


class Opened(Struct, frozen=True, kw_only=True):
    """What a session was opened with; its key by digest only."""

    session_id: str
    key_digest: bytes  # `keys.key_digest`
    run_id: str | None = None
    task: Task | None = None
    metadata: dict[str, Any] = {}
    pins: dict[str, Any] = {}  # as `sampling.checked_pins` gives them
    limits: Limits = Limits()
    mode: Mode = "train"
    reward_by: Literal["session", "admin"] = "session"
    history: Literal["append", "rerender"] = "append"
    across_swaps: bool = False
    created_at: float = 0.0  # unix seconds


class CallAdded(Struct, frozen=True, kw_only=True):
    """A call was recorded. Of its prompt what no earlier call has is written, so that n turns cost their length."""

    call: Call
    index: int  # among the session's calls
    base: int | None = None  # the earlier call whose prompt + sample the prompt begins like
    kept: int = 0  # how many ids of that are shared
    asked: Asked | None = None  # where the request may be sent again under a key

    @classmethod
    def to(cls, calls: Sequence[Call], call: Call, asked: Asked | None = None) -> CallAdded:
        """`call` as the next one after `calls`, those recorded so far."""
        if call.parent is not None:  # then it begins with all of it, id for id: the graph has seen to that
            parent = calls[call.parent]
            held = len(parent.prompt_token_ids) + len(parent.token_ids)
            return cls(call=call, index=len(calls), base=call.parent, kept=held, asked=asked)
        base = len(calls) - 1 if calls else None
        kept = 0 if base is None else _shared(calls[base], call.prompt_token_ids)
        return cls(call=call, index=len(calls), base=base, kept=kept, asked=asked)


class CallChanged(Struct, frozen=True, kw_only=True):
    """What of a recorded call may change later, both as they are now."""

    index: int
    untrainable: str | None
    reward: float | None


class Rewarded(Struct, frozen=True, kw_only=True):
    """The session's reward, as it is now."""

    reward: float | None
    components: dict[str, float | None]


Event = Opened | CallAdded | CallChanged | Rewarded


class Replayed(Struct, kw_only=True):
    """A session as its journal tells it."""

    opened: Opened
    calls: list[Call]
    asked: dict[int, Asked] = {}  # by the index of the call
    reward: float | None = None
    components: dict[str, float | None] = {}


class _Record(Struct, frozen=True, array_like=True):
    """An event as it is written."""

    kind: str
    document: bytes
    prompt: bytes = b""  # [P - kept] int32
    token_ids: bytes = b""  # [S] int32
    logprobs: bytes | None = None  # [S] float64


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Record)
_DAMAGE = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


def encode(event: Event) -> bytes:
    """Raises StoreError for what cannot be given back equal: an id past 32 bits, a NaN reward, what is not JSON."""
    try:
        if isinstance(event, CallAdded):
            return _encoder.encode(_record_of_call(event))
        return _encoder.encode(_Record(type(event).__name__, dumps(msgspec.to_builtins(event)).encode()))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreError(f"event {type(event).__name__} cannot be journaled: {error}") from error


def replay(session_id: str, events: Iterable[bytes]) -> Replayed:
    """The session after all of its events.

    An event that was written twice, for a commit may succeed whose answer is lost, counts once. Where another session
    was opened under the id later, it is that one: an id is free again when its session was refused or forgotten.
    Raises StoreError naming the session: its events are damaged, not of this session, or not all there.
    """
    state: Replayed | None = None
    try:
        for data in events:
            record = _decoder.decode(data)
            if state is None:
                state = _begin(session_id, record)
            else:
                _apply(state, record)
    except _DAMAGE as error:
        raise StoreError(f"the journal of session {session_id!r} is damaged: {error}") from error
    if state is None:
        raise StoreError(f"the journal of session {session_id!r} is damaged: it is empty")
    return state


def _begin(session_id: str, record: _Record) -> Replayed:
    if record.kind != Opened.__name__:
        raise ValueError(f"it begins with {record.kind}, not with {Opened.__name__}")
    document = json.loads(record.document)
    pins = msgspec.convert(document["pins"], Sampling)
    document["pins"] = {name: getattr(pins, name) for name in document["pins"]}
    opened = msgspec.convert(document, Opened)
    if opened.session_id != session_id:
        raise ValueError(f"it was opened as {opened.session_id!r}")
    return Replayed(opened=opened, calls=[])


def _apply(state: Replayed, record: _Record) -> None:
    match record.kind:
        case Opened.__name__:
            begun = _begin(state.opened.session_id, record)
            if begun.opened != state.opened:
                state.opened, state.calls, state.reward, state.components = begun.opened, [], None, {}
                state.asked = {}
        case CallAdded.__name__:
            _add_call(state, record)
        case CallChanged.__name__:
            changed = msgspec.convert(json.loads(record.document), CallChanged)
            call = state.calls[_index(changed.index, state.calls)]
            call.untrainable, call.reward = changed.untrainable, changed.reward
        case Rewarded.__name__:
            rewarded = msgspec.convert(json.loads(record.document), Rewarded)
            state.reward, state.components = rewarded.reward, rewarded.components
        case _:
            raise ValueError(f"{record.kind!r} is no event")


def _record_of_call(event: CallAdded) -> _Record:
    call = event.call
    sampling = _changed_fields(call.sampling)
    rest = {name: value for name in _REST if (value := getattr(call, name)) is not None}
    rest["versions"] = [[span.version, span.start, span.end] for span in call.versions]
    rest["segments"] = [[segment.engine_id, segment.start, segment.end] for segment in call.segments]
    document: dict[str, Any] = {
        "index": event.index,
        "base": event.base,
        "kept": event.kept,
        "call": {**rest, "sampling": sampling},
    }
    if event.asked is not None:
        document["asked"] = msgspec.to_builtins(event.asked)
    return _Record(
        CallAdded.__name__,
        dumps_messages(document).encode(),
        _bytes(array("i", call.prompt_token_ids[event.kept :])),
        _bytes(array("i", call.token_ids)),
        None if call.logprobs is None else _bytes(array("d", call.logprobs)),
    )


def _changed_fields(sampling: Sampling) -> dict[str, Any]:
    """Those that are not neutral. Not to be changed: the calls of a session have one sampling as a rule."""
    try:
        return _remembered(sampling)
    except TypeError:  # a grammar has no hash
        return _remembered.__wrapped__(sampling)


@lru_cache(256)
def _remembered(sampling: Sampling) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(sampling).items() if value != _NEUTRAL[name]}


def _add_call(state: Replayed, record: _Record) -> None:
    document, calls = json.loads(record.document), state.calls
    index, base, kept, rest = document["index"], document["base"], document["kept"], document["call"]
    if index > len(calls):
        raise ValueError(f"call {index} comes after {len(calls)} calls: events are missing")
    if index < len(calls):
        if calls[_index(index, calls)].call_id != rest["call_id"]:
            raise ValueError(f"call {index} is {calls[index].call_id!r} and {rest['call_id']!r}")
        return
    before: list[int] = []
    if base is not None:
        held = calls[_index(base, calls)]
        before = (held.prompt_token_ids + held.token_ids)[:kept]
    if len(before) != kept:
        raise ValueError(f"call {index} keeps {kept} ids of {len(before)}")
    rest["versions"] = [dict(zip(("version", "start", "end"), span, strict=True)) for span in rest["versions"]]
    rest["segments"] = [dict(zip(("engine_id", "start", "end"), part, strict=True)) for part in rest["segments"]]
    rest["prompt_token_ids"] = before + _items("i", record.prompt)
    rest["token_ids"] = _items("i", record.token_ids)
    rest["logprobs"] = None if record.logprobs is None else _items("d", record.logprobs)
    if (asked := document.get("asked")) is not None:
        state.asked[index] = msgspec.convert(asked, Asked)
    calls.append(msgspec.convert(rest, Call))


def _index(index: int, calls: Sequence[Call]) -> int:
    if not 0 <= index < len(calls):
        raise IndexError(f"it names call {index} of {len(calls)}")
    return index


def _shared(base: Call, prompt: Sequence[int]) -> int:
    """How many ids `prompt` has in common with the beginning of base's prompt + sample."""
    held = len(base.prompt_token_ids)
    whole = held + len(base.token_ids)
    if prompt[:held] == base.prompt_token_ids and prompt[held:whole] == base.token_ids:
        return whole
    different = bytes(map(ne, base.prompt_token_ids + base.token_ids, prompt)).find(1)
    return min(whole, len(prompt)) if different < 0 else different


def _bytes(items: array[Any]) -> bytes:
    if sys.byteorder == "big":
        items.byteswap()
    return items.tobytes()


def _items(typecode: Literal["i", "d"], data: bytes) -> list[Any]:
    items = array(typecode)
    items.frombytes(data)
    if sys.byteorder == "big":
        items.byteswap()
    return items.tolist()
