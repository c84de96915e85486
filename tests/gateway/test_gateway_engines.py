"""The pool: waiting for a routable engine, bounded in time and number, without leaking load."""

from __future__ import annotations

import asyncio

import pytest
from routing_builders import Pool, Twin

from agentrl.errors import EngineError, EngineUnavailable
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.routing import EngineState, RoutingTable


async def test_a_call_waits_for_its_turn_and_gets_the_engine_that_is_given_back() -> None:
    one = Pool()
    await one.pool.add("http://e0")
    engine = await one.pool.acquire("a")
    waiting = [asyncio.create_task(one.pool.acquire(name)) for name in "bc"]
    await asyncio.sleep(0)
    assert one.pool.waiting == 2
    one.pool.release(engine)
    assert await waiting[0] is engine
    one.pool.release(engine)
    assert await waiting[1] is engine
    assert one.load == 1
    await one.pool.close()


async def test_a_call_that_is_cancelled_while_waiting_leaves_no_load_behind() -> None:
    one = Pool()
    await one.pool.add("http://e0")
    engine = await one.pool.acquire("a")
    early, late = (asyncio.create_task(one.pool.acquire(name)) for name in "bc")
    await asyncio.sleep(0)
    early.cancel()
    await asyncio.wait({early})
    one.pool.release(engine)  # goes to `late`, which is cancelled before it can take it
    late.cancel()
    await asyncio.wait({late})
    assert late.cancelled()
    assert (one.load, one.pool.waiting) == (0, 0)
    await one.pool.close()


async def test_no_routable_engine_in_time_is_a_503_that_says_why() -> None:
    one = Pool(wait_s=0.01)
    with pytest.raises(Refusal, match=r"in 0.01 s \(none is known\)") as refused:
        await one.pool.acquire("a")
    assert (refused.value.status, refused.value.retry_after) == (503, 5)


async def test_a_full_queue_is_a_429_with_retry_after() -> None:
    one = Pool(max_waiting=1)
    waiting = asyncio.create_task(one.pool.acquire("a"))
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as refused:
        await one.pool.acquire("b")
    assert (refused.value.status, refused.value.retry_after) == (429, 1)
    waiting.cancel()
    await asyncio.wait({waiting})


async def test_an_engine_that_is_added_serves_those_who_wait() -> None:
    one = Pool()
    waiting = asyncio.create_task(one.pool.acquire("a"))
    await asyncio.sleep(0)
    engine = await one.pool.add("http://e0/")
    assert await waiting is engine
    assert (engine.url, engine.context_length) == ("http://e0", 64)
    await one.pool.close()


async def test_an_engine_that_failed_a_call_gets_none_until_the_admin_or_a_check_brings_it_back() -> None:
    one = Pool(wait_s=0.01)
    engine = await one.pool.add("http://e0")
    one.pool.failed(engine, EngineUnavailable("died"))
    with pytest.raises(Refusal, match="died"):
        await one.pool.acquire("a")


async def test_removing_an_engine_closes_its_client() -> None:
    one = Pool()
    engine = await one.pool.add("http://e0")
    await one.pool.remove(engine.id)
    assert one.twins[0].closed
    with pytest.raises(EngineUnavailable, match="removed"):
        async with one.pool.client(engine):
            pass


async def test_holding_an_engine_back_ends_the_calls_in_flight_on_it_and_leaves_its_health_alone() -> None:
    one = Pool()
    engine = await one.pool.add("http://e0")

    async def call() -> None:
        async with one.pool.client(engine):
            await asyncio.Event().wait()

    calls = [asyncio.create_task(call()) for _ in range(2)]
    await asyncio.sleep(0)
    one.pool.tell(engine.id, version=None, routable=False)
    for each in calls:
        with pytest.raises(EngineUnavailable, match="held back") as lost:
            await each
        one.pool.failed(engine, lost.value)
    with pytest.raises(EngineUnavailable, match="held back"):
        await call()
    assert engine.healthy
    await one.pool.close()


async def test_closing_the_pool_refuses_those_who_wait() -> None:
    one = Pool()
    waiting = asyncio.create_task(one.pool.acquire("a"))
    await asyncio.sleep(0)
    await one.pool.close()
    with pytest.raises(Refusal, match="being stopped"):
        await waiting


async def test_an_engine_that_answers_nonsense_is_unhealthy_and_still_watched() -> None:
    class Nonsense(Twin):
        async def version(self) -> int:
            if not self.is_healthy:
                raise AttributeError("'list' object has no attribute 'get'")
            return 0

        async def healthy(self) -> bool:
            return True

    made: list[Nonsense] = []

    def make(url: str) -> Nonsense:
        made.append(Nonsense(url))
        made[-1].is_healthy = False
        return made[-1]

    pool = EnginePool(make, RoutingTable(max_in_flight=1), health_every_s=0.005, wait_s=10, max_waiting=1)
    engine = await pool.add("http://liar")
    assert (engine.healthy, engine.last_error) == (False, "'list' object has no attribute 'get'")
    made[0].is_healthy = True
    assert await pool.acquire("s") is engine
    await pool.close()


async def test_removing_an_engine_ends_the_calls_in_flight_on_it_at_once_and_no_others() -> None:
    one = Pool(max_in_flight=4)
    removed, kept = await one.pool.add("http://e0"), await one.pool.add("http://e1")
    ended: list[str] = []

    async def call(engine: EngineState) -> None:
        try:
            async with one.pool.client(engine):
                await asyncio.Event().wait()
        except EngineUnavailable as error:
            ended.append(str(error))

    calls = [asyncio.create_task(call(engine)) for engine in (removed, removed, kept)]
    await asyncio.sleep(0)
    await one.pool.remove(removed.id)
    await asyncio.wait(calls[:2])
    assert ended == ["engine engine-0 was removed"] * 2
    assert not calls[2].done()
    await one.pool.close()
    await asyncio.wait(calls)


async def test_all_calls_that_end_with_a_silent_engine_say_the_same_cause() -> None:
    """However many: a message that grew from call to call would fill the log."""
    made: list[Twin] = []
    ended: list[str] = []

    def make(url: str) -> Twin:
        made.append(Twin(url))
        return made[-1]

    pool = EnginePool(make, RoutingTable(max_in_flight=4), health_every_s=0.005, wait_s=10, max_waiting=1)
    engine = await pool.add("http://e0")

    async def call() -> None:
        try:
            async with pool.client(engine):
                await asyncio.Event().wait()
        except EngineUnavailable as error:
            pool.failed(engine, error)
            ended.append(str(error))

    calls = [asyncio.create_task(call()) for _ in range(3)]
    await asyncio.sleep(0)
    made[0].is_healthy = False
    await asyncio.wait(calls, timeout=10)
    assert ended == [f"engine engine-0 was given up: {engine.last_error}"] * 3
    await pool.close()


async def test_an_engine_that_comes_back_under_its_old_id_is_another_one() -> None:
    one = Pool()
    old = await one.pool.add("http://e0", "e0")
    assert await one.pool.acquire("a") is old
    await one.pool.remove("e0")
    new = await one.pool.add("http://e0", "e0")
    one.pool.failed(old, EngineUnavailable("died long ago"))
    one.pool.release(old)
    assert (old.in_flight, new.in_flight, new.healthy) == (0, 0, True)
    with pytest.raises(EngineUnavailable, match="removed"):
        async with one.pool.client(old):
            pass
    await one.pool.close()


async def test_a_call_that_nobody_can_serve_yet_holds_up_only_its_like() -> None:
    one = Pool()
    engine = await one.pool.add("http://e0")
    newer, like = (asyncio.create_task(one.pool.acquire(name, at_least=1)) for name in "ab")
    await asyncio.sleep(0)
    assert await one.pool.acquire("c") is engine
    one.pool.release(engine)
    one.pool.tell(engine.id, version=1, routable=None)
    assert await newer is engine
    assert not like.done()
    one.pool.release(engine)
    assert await like is engine
    await one.pool.close()


async def test_a_pinned_call_is_refused_as_soon_as_its_version_is_gone() -> None:
    one = Pool()
    engine = await one.pool.add("http://e0")
    assert await one.pool.acquire("a", exactly=0) is engine
    waiting = asyncio.create_task(one.pool.acquire("b", exactly=0))
    await asyncio.sleep(0)
    one.pool.tell(engine.id, version=1, routable=None)
    for call in (waiting, one.pool.acquire("c", exactly=0)):
        with pytest.raises(Refusal, match="pinned to version 0 and the engines serve version 1") as refused:
            await call
        assert (refused.value.status, refused.value.code, refused.value.retry_after) == (409, "version_changed", None)
    await one.pool.close()


async def test_removing_the_last_engine_of_a_version_refuses_the_calls_that_wait_for_it() -> None:
    one = Pool()
    old, _ = await one.pool.add("http://e0/v0"), await one.pool.add("http://e1/v1")
    assert await one.pool.acquire("a", exactly=0) is old
    waiting = asyncio.create_task(one.pool.acquire("b", exactly=0))
    await asyncio.sleep(0)
    await one.pool.remove(old.id)
    with pytest.raises(Refusal, match="pinned to version 0"):
        await waiting
    await one.pool.close()


async def test_a_wait_for_a_version_that_never_came_names_it() -> None:
    one = Pool(wait_s=0.01)
    await one.pool.add("http://e0")
    with pytest.raises(Refusal, match=r"no engine of version 3 or later became routable in 0\.01 s"):
        await one.pool.acquire("a", at_least=3)
    with pytest.raises(Refusal, match="no engine of version 3 became"):
        await one.pool.acquire("a", exactly=3)
    await one.pool.close()


async def test_how_each_call_was_routed_is_told() -> None:
    one = Pool(max_in_flight=1)
    told: list[str] = []
    one.pool.on_routed = told.append
    engines = [await one.pool.add(f"http://e{number}") for number in range(2)]
    prompt = [7] * 64
    first = await one.pool.acquire("a", prompt_ids=prompt)
    one.pool.release(first)
    for session in ("a", "b"):  # b's prompt was seen where a is, which is busy: one call is all that it takes
        await one.pool.acquire(session, prompt_ids=prompt)
    waiting = asyncio.create_task(one.pool.acquire("a"))
    await asyncio.sleep(0)
    one.pool.release(first)
    assert await waiting is first
    assert told == ["least_loaded", "sticky", "least_loaded", "sticky", "waited"]
    for engine in engines:
        one.pool.release(engine)
    await one.pool.acquire("c", prompt_ids=prompt)
    assert told[5:] == ["prefix"]
    await one.pool.close()


async def test_an_error_that_is_no_outage_opens_the_breaker_only_when_it_comes_again() -> None:
    one = Pool(max_in_flight=4)
    engine = await one.pool.add("http://e0")
    states = []
    for _ in range(2):
        await one.pool.acquire("a")
        one.pool.failed(engine, EngineError("it sent no token ids"))
        one.pool.release(engine)
        states.append((engine.healthy, one.pool.status(engine).breaker))
    assert states == [(True, "closed"), (True, "open")]
    await one.pool.close()
