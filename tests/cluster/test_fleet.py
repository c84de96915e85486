"""Invariant 4 from the run's side: the gateway routes only to engines that confirmed the current version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from gateway_builders import renderer
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.cluster.fleet import EngineFleet
from agentrl.cluster.gateway_engines import GatewayEngines
from agentrl.digest import digest_of_file
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.config import EngineTimeouts
from agentrl.engine.control import EngineControl
from agentrl.engine.scripted import HANG, ScriptedEngine
from agentrl.errors import EngineError, RunError, SwapError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.routing import RoutingTable
from agentrl.gateway.server import GatewayServer
from agentrl.types import SwapRecord, WeightGroup

TIMEOUTS = EngineTimeouts(swap_s=0.5, probe_s=0.5)


def weight_group(directory: Path, version: int) -> WeightGroup:
    path = directory / f"v{version}"
    path.write_bytes(b"weights")
    return WeightGroup(
        version=version, index=0, count=1, path=str(path), digest=digest_of_file(path), names=("w",), num_bytes=7
    )


def answer(prompt_ids: object, sampling: object, version: object) -> list[int]:
    return [5]


class TableRouting:
    """The gateway's table without the gateway."""

    def __init__(self) -> None:
        self.table = RoutingTable(max_in_flight=9)

    async def show(self, engine_id: str, url: str, version: int) -> None:
        known = next((engine for engine in self.table if engine.id == engine_id), None)
        engine = known or self.table.add(url, engine_id, version)
        self.table.tell(engine_id, version=version, routable=True)
        self.table.saw_healthy(engine, version, 100, engine.revision)

    async def withdraw(self, engine_id: str) -> None:
        self.table.remove(engine_id)


@dataclass
class Run:
    """A fleet of scripted engines behind a gateway, or behind what is enough of one."""

    fleet: EngineFleet
    engines: list[ScriptedEngine]
    table: Callable[[], RoutingTable]
    server: GatewayServer | None
    directory: Path
    log: list[SwapRecord] = field(default_factory=list)
    reported: list[tuple[str, str]] = field(default_factory=list)

    async def publish(self, version: int) -> list[str]:
        """The engines that took the version."""
        async with self.fleet.swap(version) as swap:
            await swap.load(weight_group(self.directory, version))
        return [record.engine_id for record in swap.records]

    async def publish_half(self, version: int) -> None:
        async with self.fleet.swap(version) as swap:
            await swap.load(weight_group(self.directory, version))
            raise ZeroDivisionError

    async def bring(self) -> None:
        async with self.fleet.catch_up() as swap:
            if swap is not None:
                await swap.load(weight_group(self.directory, swap.version))

    async def come_back(self, number: int) -> None:
        """The engine was started again, with the initial weights."""
        engine = self.engines[number]
        await engine.crash()
        await engine.restart()
        boot = SwapRecord(engine_id=f"engine-{number}", version=0, mode="boot", started_at=5.0, finished_at=6.0)
        control = EngineControl(engine.url, engine_id=f"engine-{number}", timeouts=TIMEOUTS)
        await self.fleet.back(control, boot)

    @property
    def routed(self) -> dict[str, int | None]:
        """The version that each engine is known to have that a call may be given to."""
        table = self.table()
        return {e.id: e.version for e in table if e.healthy and not e.held_back and e.version == table.current_version}


@asynccontextmanager
async def run_of(count: int, *, gateway: bool = True, **fleet_options: Any) -> AsyncIterator[Run]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        engines = [await stack.enter_async_context(ScriptedEngine(answer)) for _ in range(count)]
        server: GatewayServer | None = None
        routing: Any = TableRouting()
        if gateway:
            server, routing = await real_gateway(stack)
        controls = [
            EngineControl(engine.url, engine_id=f"engine-{index}", timeouts=TIMEOUTS)
            for index, engine in enumerate(engines)
        ]
        log: list[SwapRecord] = []
        options = {"mode": "recompute", "wait_s": 0.05, **fleet_options}
        fleet = EngineFleet(controls, routing=routing, record=log.append, **options)
        stack.push_async_callback(fleet.close)
        run = Run(fleet, engines, lambda: table_of(server, routing), server, directory, log)
        fleet.report = lambda engine_id, what: run.reported.append((engine_id, what))
        await fleet.register()
        yield run


async def real_gateway(stack: AsyncExitStack) -> tuple[GatewayServer, GatewayEngines]:
    server = GatewayServer(GatewayConfig(health_every_s=60), renderer=renderer(), engine_factory=HttpEngineClient)
    await server.start()
    stack.push_async_callback(server.stop)
    routing = GatewayEngines(server.url, server.admin_key, patience_s=0.2)
    stack.push_async_callback(routing.close)
    return server, routing


def table_of(server: GatewayServer | None, routing: Any) -> RoutingTable:
    return routing.table if server is None else server.gateway.pools.shared.table


async def test_every_engine_takes_the_version_and_the_gateway_hears_of_it():
    async with run_of(2) as run:
        assert run.routed == {"engine-0": 0, "engine-1": 0}
        assert await run.publish(1) == ["engine-0", "engine-1"]
        assert [engine.version for engine in run.engines] == [1, 1]
        assert [(record.engine_id, record.version) for record in run.log] == [("engine-0", 1), ("engine-1", 1)]
        assert run.routed == {"engine-0": 1, "engine-1": 1}


async def test_each_engine_swaps_in_its_own_mode():
    async with run_of(2, mode={"engine-0": "keep", "engine-1": "drain"}) as run:
        await run.publish(1)
        assert [record.mode for record in run.log] == ["keep", "drain"]
        assert run.engines[0].control_calls[-6] == "pause?mode=keep&clear_cache=false"
        assert run.engines[1].control_calls[-6] == "pause?mode=wait&clear_cache=true"


@pytest.mark.parametrize(
    ("call", "status"),
    [
        ("pause", 500),
        ("update_weights", 500),
        ("finish_weight_update", HANG),
        ("resume", 500),
        ("update_weights", HANG),
    ],
)
async def test_an_engine_that_fails_or_stalls_in_a_swap_is_withdrawn_and_reported(call: str, status: int):
    async with run_of(2) as run:
        run.engines[1].refuse_swap[call] = status
        assert await run.publish(1) == ["engine-0"]
        assert run.routed == {"engine-0": 1}
        [(engine_id, what)] = run.reported
        assert (engine_id, "failed a swap" in what) == ("engine-1", True)


async def test_an_engine_that_says_another_version_than_it_was_given_is_withdrawn():
    async with run_of(2) as run:
        run.engines[1].refuse_swap["weight_info"] = 500
        await run.publish(1)
        assert run.routed == {"engine-0": 1}


async def test_an_engine_that_comes_back_is_brought_to_the_newest_version_before_it_is_routed_to():
    async with run_of(2) as run:
        run.engines[1].refuse_swap["update_weights"] = 500
        await run.publish(1)
        run.engines[1].refuse_swap.clear()
        await run.come_back(1)
        assert run.routed == {"engine-0": 1}
        await run.bring()
        assert run.routed == {"engine-0": 1, "engine-1": 1}
        assert [(r.engine_id, r.version, r.mode) for r in run.log] == [
            ("engine-0", 1, "recompute"),
            ("engine-1", 0, "boot"),
            ("engine-1", 1, "recompute"),
        ]


async def test_an_engine_that_comes_back_takes_the_next_version_with_the_others_whole():
    async with run_of(2) as run:
        await run.publish(1)
        async with run.fleet.swap(2) as swap:
            assert swap.fed
            await swap.load(weight_group(run.directory, 2))
        await run.fleet.lost("engine-1")
        assert run.routed == {"engine-0": 2}
        await run.come_back(1)
        async with run.fleet.swap(3) as swap:
            assert not swap.fed, "it was sent nothing in this life"
            await swap.load(weight_group(run.directory, 3))
        assert run.routed == {"engine-0": 3, "engine-1": 3}


async def test_an_engine_that_comes_back_within_a_swap_waits_for_its_end():
    async with run_of(2) as run:
        await run.fleet.lost("engine-1")
        async with run.fleet.swap(1) as swap:
            await run.come_back(1)
            await swap.load(weight_group(run.directory, 1))
        assert run.routed == {"engine-0": 1}
        await run.bring()
        assert run.routed == {"engine-0": 1, "engine-1": 1}


async def test_a_swap_that_no_engine_took_fails_and_raises_no_version():
    async with run_of(1) as run:
        run.engines[0].refuse_swap["finish_weight_update"] = 500
        with pytest.raises(SwapError, match="no engine took version 1: engine engine-0 did not get version 1"):
            await run.publish(1)
        assert (run.fleet.version, run.routed) == (0, {})


async def test_with_no_engine_up_a_swap_waits_for_one():
    async with run_of(1, wait_s=20.0) as run:
        await run.fleet.lost("engine-0")
        publishing = asyncio.create_task(run.publish(1))
        await asyncio.sleep(0)
        await run.come_back(0)
        assert await publishing == ["engine-0"]
        assert run.routed == {"engine-0": 1}


async def test_with_no_engine_up_for_too_long_a_swap_fails():
    async with run_of(1) as run:
        await run.fleet.lost("engine-0")
        with pytest.raises(SwapError, match=r"no engine is up, and none came back in 0\.05 s"):
            await run.publish(1)


async def test_a_trainer_that_fails_inside_a_swap_leaves_no_engine_serving_half_of_it_and_blames_none():
    async with run_of(1) as run:
        with pytest.raises(ZeroDivisionError):
            await run.publish_half(1)
        assert (run.routed, run.reported) == ({}, [])
        assert await run.publish(1) == ["engine-0"]
        assert run.routed == {"engine-0": 1}


async def test_who_waits_for_an_engine_hears_that_it_failed_again():
    async with run_of(1) as run:
        await run.publish(1)
        await run.come_back(0)
        waiting = asyncio.create_task(run.fleet.until_current("engine-0"))
        await asyncio.sleep(0)
        await run.fleet.lost("engine-0")
        with pytest.raises(EngineError, match="engine-0 failed again before it had the newest version"):
            await waiting


async def test_another_gateway_is_told_of_the_engines_that_have_the_version_and_of_no_other():
    async with run_of(3) as run:
        await run.fleet.lost("engine-1")
        await run.publish(4)
        await run.come_back(1)
        assert run.server is not None
        pool = run.server.gateway.pools.shared
        for engine in list(pool.table):
            await pool.remove(engine.id)
        pool.table.current_version = 0
        await run.fleet.register_again()
        assert run.routed == {"engine-0": 4, "engine-2": 4}


async def test_a_gateway_that_is_gone_for_good_is_named():
    async with run_of(1) as run:
        assert run.server is not None
        await run.server.stop()
        with pytest.raises(RunError, match="the gateway did not take PUT /engines/engine-0"):
            await run.publish(1)


async def test_a_fleet_that_slept_wakes_with_the_version_and_one_that_did_not_gets_no_traffic():
    async with run_of(2, sleep_level=1) as run:
        run.engines[1].refuse_swap["sleep"] = 500
        await run.fleet.sleep()
        assert [engine.asleep for engine in run.engines] == [{"weights", "kv_cache"}, set()]
        assert run.routed == {"engine-0": 0}
        assert run.reported[0][0] == "engine-1"
        assert await run.publish(1) == ["engine-0"]
        assert (run.engines[0].asleep, run.engines[0].paused) == (set(), None)
        assert run.routed == {"engine-0": 1}


async def test_a_fleet_of_which_none_falls_asleep_fails_before_the_trainer_takes_its_memory():
    async with run_of(1, sleep_level=1) as run:
        run.engines[0].refuse_swap["sleep"] = 500
        with pytest.raises(SwapError, match="no engine fell asleep: engine engine-0/sleep answered 500"):
            await run.fleet.sleep()


FAULTS = (None, "pause", "start_weight_update", "update_weights", "finish_weight_update", "weight_info", "resume")
Doing = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.sampled_from(FAULTS), min_size=3, max_size=3)),
    st.tuples(st.just("trainer fails"), st.none()),
    st.tuples(st.just("dies"), st.integers(0, 2)),
    st.tuples(st.just("comes back"), st.integers(0, 2)),
    st.tuples(st.just("bring"), st.none()),
    st.tuples(st.just("new gateway"), st.none()),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(Doing, max_size=8))
def test_whatever_fails_in_whatever_order_no_engine_with_an_old_version_is_routed_to(doings: list[tuple[str, Any]]):
    """A swap makes its version current or raises; who is routed to serves the current version, by its own word."""

    async def scenario() -> None:
        async with run_of(3, gateway=False) as run:
            version = 0
            for what, detail in doings:
                version += await do(run, what, detail, version + 1)
                for engine_id, known in run.routed.items():
                    engine = run.engines[int(engine_id[-1])]
                    assert (engine.version, engine.paused, known) == (run.fleet.version, None, run.fleet.version)
                assert run.fleet.version == version

    asyncio.run(scenario())


async def do(run: Run, what: str, detail: Any, version: int) -> int:
    """How many versions it made."""
    if what == "publish":
        for engine, fault in zip(run.engines, detail, strict=True):
            engine.refuse_swap = {} if fault is None else {fault: 500}
        try:
            await run.publish(version)
        except SwapError:
            return 0
        return 1
    for engine in run.engines:
        engine.refuse_swap = {}
    if what == "trainer fails":
        with pytest.raises((ZeroDivisionError, SwapError)):
            await run.publish_half(version)
    elif what == "dies":
        await run.fleet.lost(f"engine-{detail}")
    elif what == "comes back":
        if f"engine-{detail}" not in run.routed:
            await run.come_back(detail)
    elif what == "bring":
        await run.bring()
    else:
        table = run.table()
        for known in table:
            table.remove(known.id)
        table.current_version = 0
        await run.fleet.register_again()
    return 0
