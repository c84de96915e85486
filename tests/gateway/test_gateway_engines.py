"""The pool: waiting for a routable engine, bounded in time and number, without leaking load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from agentrl.errors import EngineUnavailable
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.routing import RoutingTable
from agentrl.types import Sampling, TokenChunk


class Twin:
    """An engine client whose health a test turns on and off."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_healthy = True
        self.closed = False

    def stream(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> AsyncGenerator[TokenChunk]:
        raise NotImplementedError

    async def version(self) -> int:
        if not self.is_healthy:
            raise EngineUnavailable("down")
        return 0

    async def healthy(self) -> bool:
        return self.is_healthy

    async def context_length(self) -> int:
        return 64

    async def close(self) -> None:
        self.closed = True


class Pool:
    """A pool of one twin whose health is only checked when a test says so."""

    def __init__(self, *, wait_s: float = 5.0, max_waiting: int = 8, max_in_flight: int = 1) -> None:
        self.twins: list[Twin] = []
        table = RoutingTable(max_in_flight=max_in_flight)
        self.pool = EnginePool(self.make, table, health_every_s=1000.0, wait_s=wait_s, max_waiting=max_waiting)

    def make(self, url: str) -> Twin:
        self.twins.append(Twin(url))
        return self.twins[-1]

    @property
    def load(self) -> int:
        return sum(engine.in_flight for engine in self.pool.table)


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
