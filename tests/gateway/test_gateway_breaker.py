"""Engines that answer their health checks and fail calls: how they are tried again, and what waits meanwhile."""

from __future__ import annotations

import pytest
from routing_builders import Pool, VirtualLoop, table, taken

from agentrl.errors import EngineUnavailable
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.routing import EngineState


def test_an_engine_that_answers_health_checks_and_fails_every_call_gets_one_call_at_longer_and_longer_intervals() -> (
    None
):
    """A health check every second for two minutes, a call whenever one is admitted."""
    routing = table(0)
    engine = routing.get("e0")
    called_at = []
    for now in range(120):
        routing.saw_healthy(engine, 0, 100, engine.revision)
        while taken(routing, "a", now=now) is not None:
            called_at.append(now)
            engine.breaker.failed(now, jitter=0, fatal=True)
            routing.saw_failure(engine, "it generates nothing", fatal=True)
            routing.release(engine)
    assert called_at[:6] == [0, 1, 3, 7, 15, 23]  # waits of 1, 2, 4, 8, and 8 is the cap
    assert len(called_at) == 18


def test_a_half_open_engine_gets_one_call_until_that_one_has_ended() -> None:
    routing = table(0)
    engine = routing.get("e0")
    engine.breaker.failed(0, jitter=0, fatal=True)
    assert (taken(routing, "a", now=0.5), routing.next_half_open(0.5)) == (None, 1)
    assert [taken(routing, session, now=1) for session in "ab"] == ["e0", None]
    routing.release(engine)  # cancelled, say: it told nothing
    assert [taken(routing, session, now=1) for session in "ab"] == ["e0", None]
    engine.breaker.succeeded(2)
    assert (taken(routing, "b", now=2), routing.next_half_open(2)) == ("e0", None)


def test_the_breaker_shows_in_the_status() -> None:
    routing = table(0)
    engine = routing.get("e0")
    engine.breaker.failed(0, jitter=0, fatal=True)
    assert [routing.status(engine, now).breaker for now in (0, 1)] == ["open", "half_open"]
    engine.breaker.succeeded(1)
    assert routing.status(engine, 1).breaker == "closed"


def virtual() -> tuple[VirtualLoop, Pool, EngineState]:
    """A pool in virtual time, whose one engine has just died under a call and answers health checks again."""
    loop = VirtualLoop()
    one = Pool(wait_s=100.0, max_in_flight=4, max_waiting=2)

    async def die() -> EngineState:
        engine = await one.pool.add("http://e0")
        await one.pool.acquire("a")
        one.pool.failed(engine, EngineUnavailable("died"))
        one.pool.release(engine)
        one.pool.table.saw_healthy(engine, 0, 64, engine.revision)
        return engine

    return loop, one, loop.run_until_complete(die())


def end(loop: VirtualLoop, one: Pool) -> None:
    loop.run_until_complete(one.pool.close())
    loop.settle()
    loop.close()


def test_calls_wait_for_the_half_open_moment_and_then_go_one_by_one() -> None:
    loop, one, engine = virtual()
    calls = [loop.create_task(one.pool.acquire(session)) for session in "bc"]
    loop.settle()
    assert [call.done() for call in calls] == [False, False]
    loop.now = 1.0
    loop.settle()
    assert [call.done() for call in calls] == [True, False]
    loop.call_soon(one.pool.answering, engine)
    loop.settle()
    assert [call.done() for call in calls] == [True, True]
    end(loop, one)


def test_one_call_alone_is_woken_at_the_half_open_moment_too() -> None:
    loop, one, engine = virtual()
    call = loop.create_task(one.pool.acquire("b"))
    loop.settle()
    loop.now = 1.0
    loop.settle()
    assert call.result() is engine
    end(loop, one)


def test_a_wait_for_a_half_open_moment_is_bounded_like_any_other() -> None:
    loop, one, engine = virtual()
    calls = [loop.create_task(one.pool.acquire(session)) for session in "bc"]
    loop.settle()
    loop.now = 1.0
    loop.settle()  # b is the probe, and never ends
    loop.now = 101.0
    loop.settle()
    with pytest.raises(Refusal, match="in 100 s") as refused:
        calls[1].result()
    assert (refused.value.status, engine.in_flight) == (503, 1)
    end(loop, one)


def test_retry_after_is_how_long_the_queue_takes_at_the_rate_of_late() -> None:
    """A call ends every ten seconds and two wait."""
    loop, one, engine = virtual()

    async def fill() -> None:
        one.pool.succeeded(engine)
        for _ in range(4):
            await one.pool.acquire("a")

    loop.now = 1.0
    loop.run_until_complete(fill())
    for _ in range(3):
        loop.now += 10
        loop.call_soon(one.pool.release, engine)
        loop.settle()
        loop.run_until_complete(one.pool.acquire("a"))
    waiting = [loop.create_task(one.pool.acquire(session)) for session in "bc"]
    loop.settle()
    with pytest.raises(Refusal) as refused:
        loop.run_until_complete(one.pool.acquire("d"))
    assert refused.value.status == 429
    assert refused.value.retry_after == pytest.approx(2 * 31 / 3)  # three ended after the one at 0
    end(loop, one)
    assert all(call.exception() is not None for call in waiting)
