"""Events of a session: each comes back as it was, and all of them together are the session."""

from __future__ import annotations

import copy
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import TrajectoryBuilder, branching, two_turns

from agentrl.errors import StoreError
from agentrl.gateway.journal import CallAdded, CallChanged, Event, Opened, Replayed, Rewarded, encode, replay
from agentrl.gateway.keys import key_digest
from agentrl.gateway.sampling import checked_pins
from agentrl.types import Call, Constraint, Limits, Sampling, Segment, Task, VersionSpan

OPENED = Opened(session_id="s0", key_digest=key_digest("sk-agentrl-1"), created_at=99.5)

int32 = st.integers(-(2**31), 2**31 - 1)
ids = st.lists(st.integers(0, 3) | int32, max_size=8)
any_text = st.text(st.characters(exclude_categories=()), max_size=5)  # halves of surrogate pairs too
names = st.text(max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)
documents = st.dictionaries(any_text, json_values, max_size=3)
finite = st.floats(allow_nan=False, allow_infinity=False)
scores = st.none() | finite
samplings = st.builds(
    Sampling,
    temperature=finite,
    max_tokens=st.none() | st.integers(1, 9),
    stop=st.lists(any_text, max_size=2).map(tuple),
    stop_token_ids=st.lists(int32, max_size=2).map(tuple),
    seed=st.none() | st.integers(0, 2**70),
    top_logprobs=st.integers(0, 20),
    constraint=st.none() | st.builds(Constraint, kind=st.sampled_from(["json", "regex"]), value=json_values),
)
new_calls = st.builds(
    Call,
    call_id=st.uuids().map(str),
    prompt_token_ids=ids,
    prompt_digest=names,
    token_ids=ids,
    logprobs=st.none() | st.lists(st.floats(allow_nan=False), max_size=8),
    versions=st.lists(st.builds(VersionSpan, int32, int32, int32), max_size=2),
    finish_reason=st.sampled_from(["stop", "length", "abort"]),
    engine_id=names,
    sampling=samplings,
    message=documents,
    reward=scores,
    untrainable=st.none() | names,
    segments=st.lists(st.builds(Segment, names, int32, int32), max_size=2),
    moments=st.lists(st.integers(0, 2**40), max_size=5),
    messages=st.lists(documents, max_size=2),
    conversation=names,
    started_at=finite,
    ended_at=finite,
)
openings = st.builds(
    Opened,
    session_id=st.just("s0"),
    key_digest=st.binary(min_size=32, max_size=32),
    run_id=st.none() | names,
    task=st.none() | st.builds(Task, id=any_text, env_id=names, seed=st.integers(), options=documents),
    metadata=documents,
    pins=st.tuples(samplings, st.sets(st.sampled_from(Sampling.__struct_fields__))).map(
        lambda drawn: {name: getattr(drawn[0], name) for name in sorted(drawn[1])}
    ),
    limits=st.builds(Limits, max_calls=st.none() | st.integers(1, 9), deadline_s=st.none() | st.floats(0.5, 9)),
    mode=st.sampled_from(["train", "eval"]),
    reward_by=st.sampled_from(["session", "admin"]),
    history=st.sampled_from(["append", "rerender"]),
    across_swaps=st.booleans(),
    created_at=finite,
)


@st.composite
def lives(draw: st.DrawFn) -> tuple[Replayed, list[Event]]:
    """A session as it is in memory in the end, and what happened to it."""
    opened = draw(openings)
    state, events = Replayed(opened=opened, calls=[]), [opened]
    for _ in range(draw(st.integers(0, 8))):
        match draw(st.sampled_from(["call", "change", "reward"])):
            case "call":
                call = draw(new_calls)
                if state.calls and draw(st.booleans()):
                    call.parent = draw(st.integers(0, len(state.calls) - 1))
                    parent = state.calls[call.parent]
                    call.prompt_token_ids = parent.prompt_token_ids + parent.token_ids + call.prompt_token_ids
                events.append(CallAdded.to(state.calls, copy.deepcopy(call)))
                state.calls.append(call)
            case "change" if state.calls:
                index = draw(st.integers(0, len(state.calls) - 1))
                call = state.calls[index]
                call.untrainable, call.reward = draw(st.none() | names), draw(scores)
                events.append(CallChanged(index=index, untrainable=call.untrainable, reward=call.reward))
            case "reward":
                state.reward = draw(scores)
                state.components = draw(st.dictionaries(any_text, scores, max_size=2))
                events.append(Rewarded(reward=state.reward, components=state.components))
    return state, events


@given(lives())
def test_a_session_is_replayed_as_it_was(life: tuple[Replayed, list[Event]]) -> None:
    state, events = life
    assert replay("s0", map(encode, events)) == state


@given(lives(), st.data())
def test_events_that_were_written_twice_count_once(life: tuple[Replayed, list[Event]], data: st.DataObject) -> None:
    """A transaction whose answer was lost is written again, whole, before anything later."""
    state, events = life
    start = data.draw(st.integers(0, len(events)))
    end = data.draw(st.integers(start, len(events)))
    assert replay("s0", map(encode, [*events[:end], *events[start:end], *events[end:]])) == state


@given(lives(), st.data())
def test_a_session_with_an_event_missing_never_comes_back_as_another(
    life: tuple[Replayed, list[Event]], data: st.DataObject
) -> None:
    """A lost call is noticed unless it is the last; so is a lost opening."""
    _, events = life
    added = [index for index, event in enumerate(events) if isinstance(event, CallAdded)]
    missing = data.draw(st.sampled_from([0, *added[:-1]]))
    with pytest.raises(StoreError, match="the journal of session 's0' is damaged"):
        replay("s0", map(encode, events[:missing] + events[missing + 1 :]))


@given(lives(), st.data())
def test_a_cut_off_event_is_damage(life: tuple[Replayed, list[Event]], data: st.DataObject) -> None:
    blobs = [encode(event) for event in life[1]]
    index = data.draw(st.integers(0, len(blobs) - 1))
    blobs[index] = blobs[index][: data.draw(st.integers(0, len(blobs[index]) - 1))]
    with pytest.raises(StoreError, match="the journal of session 's0' is damaged"):
        replay("s0", blobs)


def journaled(calls: list[Call]) -> list[bytes]:
    return [encode(OPENED), *(encode(CallAdded.to(calls[:index], call)) for index, call in enumerate(calls))]


def test_branches_and_new_roots_come_back() -> None:
    calls = branching().build().calls
    assert replay("s0", journaled(calls)).calls == calls


def test_of_sessions_that_were_opened_under_one_id_the_last_comes_back() -> None:
    """The first was refused for want of the store, which has it for all that; or its journal could not be forgotten."""
    again = msgspec.structs.replace(OPENED, key_digest=b"another key")
    events = [OPENED, spoiled(call_id="a"), Rewarded(reward=1.0, components={"a": 1.0}), again, spoiled(call_id="b")]
    replayed = replay("s0", map(encode, events))
    assert (replayed.opened, [call.call_id for call in replayed.calls]) == (again, ["b"])
    assert (replayed.reward, replayed.components) == (None, {})


def test_a_session_costs_its_own_length() -> None:
    """40 turns of 200 new and 100 sampled tokens: 4 bytes an id, 8 a logprob, and under 1 KiB beside them."""
    builder = TrajectoryBuilder()
    for _ in range(40):
        builder.call(range(200), 100)
    sizes = [len(blob) for blob in journaled(builder.build().calls)[1:]]
    assert all(300 * 4 + 100 * 8 < size < 300 * 4 + 100 * 8 + 1024 for size in sizes)


def test_a_rewritten_prompt_costs_what_is_new_of_it() -> None:
    """A root whose prompt shares 900 of 1,000 ids with the call before."""
    builder = TrajectoryBuilder().call(range(1000), 10).call([*range(900), *range(5000, 5100)], 10, after=None)
    calls = builder.build().calls
    added = CallAdded.to(calls[:1], calls[1])
    assert (added.base, added.kept, added.call.parent) == (0, 900, None)
    assert replay("s0", journaled(calls)).calls == calls


def test_pins_come_back_as_they_were_checked() -> None:
    pins = checked_pins({"temperature": 0.5, "stop": ["a", "b"], "max_tokens": 7}, "train")
    opened = msgspec.structs.replace(OPENED, pins=pins)
    assert replay("s0", [encode(opened)]).opened.pins == {"temperature": 0.5, "stop": ("a", "b"), "max_tokens": 7}


def test_the_key_of_a_session_is_in_none_of_its_bytes() -> None:
    assert b"sk-agentrl" not in encode(OPENED)
    assert replay("s0", [encode(OPENED)]).opened.key_digest == key_digest("sk-agentrl-1")


def spoiled(**changes: Any) -> CallAdded:
    return CallAdded.to([], msgspec.structs.replace(two_turns().build().calls[0], **changes))


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (Rewarded(reward=math.nan, components={}), "event Rewarded cannot be journaled: .*JSON compliant"),
        (spoiled(token_ids=[2**31]), "event CallAdded cannot be journaled"),
        (spoiled(message={"role": object()}), "event CallAdded cannot be journaled: .*serializable"),
    ],
)
def test_what_would_be_read_back_differently_is_refused(event: Event, named: str) -> None:
    with pytest.raises(StoreError, match=named):
        encode(event)


@pytest.mark.parametrize(
    ("events", "named"),
    [
        ([], "it is empty"),
        ([Rewarded(reward=1.0, components={})], "it begins with Rewarded, not with Opened"),
        ([msgspec.structs.replace(OPENED, session_id="s1")], "it was opened as 's1'"),
        ([OPENED, CallChanged(index=0, untrainable=None, reward=1.0)], "it names call 0 of 0"),
        ([OPENED, msgspec.structs.replace(spoiled(), index=2)], "call 2 comes after 0 calls: events are missing"),
        ([OPENED, spoiled(call_id="a"), spoiled(call_id="b")], "call 0 is 'a' and 'b'"),
        ([OPENED, msgspec.structs.replace(spoiled(), base=0, kept=3)], "it names call 0 of 0"),
    ],
)
def test_damage_is_said(events: list[Event], named: str) -> None:
    with pytest.raises(StoreError, match=f"the journal of session 's0' is damaged: {named}"):
        replay("s0", map(encode, events))


def test_an_event_of_a_kind_that_is_unknown_is_damage() -> None:
    blob = msgspec.msgpack.encode(["Deleted", b"{}"])
    with pytest.raises(StoreError, match="'s0' is damaged: 'Deleted' is no event"):
        replay("s0", [encode(OPENED), blob])
