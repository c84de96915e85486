"""Sessions: open → sealed, limits, rewards, keys, expiry."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.gateway.refusal import Refusal
from agentrl.gateway.session import Session
from agentrl.gateway.sessions import SessionRegistry
from agentrl.types import Call, Limits, Sampling, VersionSpan


def session(**limits: float) -> Session:
    return Session("s", "key", now=100.0, limits=Limits(**limits))  # type: ignore[arg-type]


def sampled(tokens: int) -> Call:
    return Call(
        call_id="chatcmpl-1",
        prompt_token_ids=[1],
        prompt_digest="",
        token_ids=[2] * tokens,
        logprobs=[-0.5] * tokens,
        versions=[VersionSpan(0, 0, tokens)],
        finish_reason="stop",
        engine_id="e0",
        sampling=Sampling(),
        message={"role": "assistant", "content": ""},
    )


def registry(**settings: float) -> SessionRegistry:
    return SessionRegistry(**{"max_sessions": 2, "idle_s": 60.0, "saved_idle_s": 5.0, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "used", "now", "named", "stop_reason"),
    [
        ({"max_calls": 2}, 0, 101.0, "limits.max_calls", "max_turns"),
        ({"max_tokens": 10}, 10, 101.0, "limits.max_tokens", "max_tokens"),
        ({"deadline_s": 5.0}, 0, 105.0, "limits.deadline_s", "deadline"),
    ],
)
def test_a_used_up_limit_ends_the_session_by_name(
    limits: dict[str, float], used: int, now: float, named: str, stop_reason: str
) -> None:
    one = session(**limits)
    one.admit(101.0)
    one.admit(101.0)
    one.graph.add(sampled(used))
    with pytest.raises(Refusal) as refused:
        one.admit(now)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "session_limit_reached", named)
    assert refused.value.retry_after is None
    assert one.stop_reason == stop_reason


@pytest.mark.parametrize("limit", ["max_calls", "max_tokens", "deadline_s"])
@pytest.mark.parametrize("value", [0, -1])
def test_case_47_a_limit_that_is_not_positive_is_refused(limit: str, value: int) -> None:
    """Case 47."""
    with pytest.raises(ValueError, match=f"limits.{limit}"):
        Limits(**{limit: value})


async def test_sealing_ends_calls_in_flight_and_refuses_later_ones() -> None:
    one = session()
    call = asyncio.create_task(asyncio.Event().wait())
    one.track(call)
    await one.seal("done", 200.0)
    assert call.cancelled()
    with pytest.raises(Refusal) as refused:
        one.admit(201.0)
    assert refused.value.status == 409
    assert (one.stop_reason, one.finished_at) == ("done", 200.0)


async def test_a_second_seal_changes_nothing() -> None:
    one = session()
    await one.seal("done", 200.0)
    await one.seal("cancelled", 300.0)
    assert (one.stop_reason, one.finished_at) == ("done", 200.0)


def test_a_reward_may_be_of_one_call() -> None:
    one = session()
    one.graph.add(sampled(3))
    one.set_reward(0.25, None, "chatcmpl-1")
    assert (one.reward, one.graph.calls[0].reward) == (None, 0.25)
    with pytest.raises(Refusal, match="no call 'chatcmpl-2'"):
        one.set_reward(1.0, None, "chatcmpl-2")


def test_keys_are_random_and_open_their_own_session() -> None:
    sessions = registry()
    (first, key), (_, other) = sessions.create(None, now=0.0), sessions.create(None, now=0.0)
    assert key != other
    assert len(key) > 40
    assert sessions.by_key(key) is first
    assert sessions.by_key(key + "x") is None


def test_an_id_is_taken_once_and_has_no_path_in_it() -> None:
    sessions = registry()
    sessions.create("a", now=0.0)
    with pytest.raises(Refusal, match="exists already"):
        sessions.create("a", now=0.0)
    with pytest.raises(Refusal, match="letters, digits"):
        sessions.create("../a", now=0.0)


def test_at_the_cap_the_first_saved_session_makes_room_and_open_ones_do_not() -> None:
    sessions = registry()
    sessions.create("a", now=0.0)
    sessions.create("b", now=0.0)[0].saved = True
    sessions.create("c", now=0.0)
    with pytest.raises(Refusal, match="no session 'b'"):
        sessions.get("b")
    with pytest.raises(Refusal) as refused:
        sessions.create("d", now=0.0)
    assert refused.value.status == 429


def test_a_saved_session_lets_go_of_its_tokens_and_still_answers_for_its_key() -> None:
    sessions = registry()
    saved, key = sessions.create("s", now=0.0)
    saved.graph.add(sampled(3))
    saved.saved = saved.sealed = True
    assert sessions.expire(now=5.0) == []
    assert not saved.released
    sessions.expire(now=6.0)
    assert (saved.released, saved.graph.calls, sessions.by_key(key)) == (True, [], saved)


async def test_case_78_abandoned_sessions_expire_and_those_in_use_do_not() -> None:
    sessions = registry(max_sessions=10)
    (abandoned, _), (saved, key), (busy, _), (fresh, _) = (sessions.create(name, now=0.0) for name in "asbf")
    saved.saved, fresh.last_used = True, 55.0
    call = asyncio.create_task(asyncio.Event().wait())
    busy.track(call)
    assert sessions.expire(now=61.0) == [abandoned]
    assert [session.id for session in sessions] == ["a", "b", "f"]
    assert sessions.by_key(key) is None
    call.cancel()
