"""Builders for the tests of routing: tables and pools of engines, an engine client and a clock that tests control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from agentrl.breaker import BreakerPolicy
from agentrl.errors import EngineUnavailable
from agentrl.gateway.affinity import BLOCK
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.routing import Choice, EngineState, Need, RoutingTable
from agentrl.types import Sampling, TokenChunk


def table(*versions: int, max_in_flight: int = 8, engine_concurrency: int = 8, max_skew: int = 2) -> RoutingTable:
    """Healthy engines e0, e1, … that serve these versions."""
    made = RoutingTable(
        max_in_flight=max_in_flight,
        engine_concurrency=engine_concurrency,
        max_skew=max_skew,
        breaker=BreakerPolicy(failures=2, backoff_s=1, max_backoff_s=8),
    )
    for number in range(len(versions)):
        made.add(f"http://e{number}", f"e{number}")
    for engine, version in zip(made, versions, strict=True):
        made.saw_healthy(engine, version, 100, engine.revision)
    return made


def take(
    routing: RoutingTable,
    session_id: str,
    prompt: list[int] | None = None,
    *,
    now: float = 0.0,
    at_least: int | None = None,
    exactly: int | None = None,
) -> tuple[EngineState, Choice] | None:
    """`prompt` has one whole block per item."""
    prompt_ids = [item for item in prompt or [] for _ in range(BLOCK)]
    need = Need(session_id=session_id, prompt_ids=prompt_ids, at_least=at_least, exactly=exactly)
    return routing.take(need, now)


def taken(routing: RoutingTable, session_id: str, prompt: list[int] | None = None, **need: Any) -> str | None:
    got = take(routing, session_id, prompt, **need)
    return got[0].id if got else None


def end_all(routing: RoutingTable) -> None:
    """Every call ends; the sessions stay."""
    for engine in routing:
        for _ in range(engine.in_flight):
            routing.release(engine)


class Twin:
    """Serves the version that its URL ends with (`…/v3`), 0 without one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.serves = int(url.rpartition("/v")[2]) if "/v" in url else 0
        self.is_healthy = True
        self.closed = False

    def stream(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, version: int | None = None
    ) -> AsyncGenerator[TokenChunk]:
        raise NotImplementedError

    async def version(self) -> int:
        if not self.is_healthy:
            raise EngineUnavailable("down")
        return self.serves

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
        table = RoutingTable(max_in_flight=max_in_flight, breaker=BreakerPolicy(failures=2, backoff_s=1))
        self.pool = EnginePool(
            self.make, table, health_every_s=1000.0, wait_s=wait_s, max_waiting=max_waiting, jitter=lambda: 0.0
        )

    def make(self, url: str) -> Twin:
        self.twins.append(Twin(url))
        return self.twins[-1]

    @property
    def load(self) -> int:
        return sum(engine.in_flight for engine in self.pool.table)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still at `now` until a test moves it. Only for what waits for nothing outside the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._raised: list[BaseException] = []
        self.set_exception_handler(lambda loop, context: self._raised.append(context["exception"]))

    def time(self) -> float:
        return self.now

    def settle(self) -> None:
        """Runs callbacks until only later ones are left. Raises what one of them raised."""
        self.run_until_complete(_settle())
        if self._raised:
            raise self._raised.pop(0)


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
