"""Invariant 4 from the run's side: the gateway routes only to engines that confirmed the current version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gateway_builders import renderer

from agentrl.cluster.fleet import EngineFleet
from agentrl.digest import digest_of_file
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.control import EngineControl
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import RunError, SwapError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.server import GatewayServer
from agentrl.types import SwapRecord, WeightGroup

SWAP_LOG: list[SwapRecord] = []


@pytest.fixture(autouse=True)
def empty_swap_log() -> None:
    SWAP_LOG.clear()


def weight_group(directory: Path, version: int) -> WeightGroup:
    path = directory / f"v{version}"
    path.write_bytes(b"weights")
    return WeightGroup(
        version=version, index=0, count=1, path=str(path), digest=digest_of_file(path), names=("w",), num_bytes=7
    )


@asynccontextmanager
async def fleet_of(*engines: ScriptedEngine) -> AsyncIterator[tuple[EngineFleet, GatewayServer]]:
    server = GatewayServer(GatewayConfig(health_every_s=60), renderer=renderer(), engine_factory=HttpEngineClient)
    await server.start()
    controls = [EngineControl(engine.url, engine_id=f"engine-{index}") for index, engine in enumerate(engines)]
    fleet = EngineFleet(
        controls, mode="recompute", gateway_url=server.url, admin_key=server.admin_key, record=SWAP_LOG.append
    )
    try:
        await fleet.register()
        yield fleet, server
    finally:
        await fleet.close()
        await server.stop()


async def publish(fleet: EngineFleet, directory: Path, version: int) -> list[str]:
    """The engines that took the version."""
    async with fleet.swap(version) as swap:
        await swap.load(weight_group(directory, version))
    return [record.engine_id for record in swap.records]


async def publish_half(fleet: EngineFleet, directory: Path) -> None:
    async with fleet.swap(1) as swap:
        await swap.load(weight_group(directory, 1))
        raise ZeroDivisionError


def routable(server: GatewayServer) -> dict[str, bool]:
    table = server.gateway.pools.shared.table
    return {
        engine.id: engine.healthy and not engine.held_back and engine.version == table.current_version
        for engine in table
    }


def answer(prompt_ids: object, sampling: object, version: object) -> list[int]:
    return [5]


async def test_every_engine_takes_the_version_and_the_gateway_hears_of_it(tmp_path: Path):
    async with ScriptedEngine(answer) as one, ScriptedEngine(answer) as two, fleet_of(one, two) as (fleet, server):
        assert server.gateway.pools.shared.table.current_version == 0
        assert await publish(fleet, tmp_path, 1) == ["engine-0", "engine-1"]
        assert (one.version, two.version) == (1, 1)
        assert [(record.engine_id, record.version) for record in SWAP_LOG] == [("engine-0", 1), ("engine-1", 1)]
        assert server.gateway.pools.shared.table.current_version == 1
        assert routable(server) == {"engine-0": True, "engine-1": True}


async def test_an_engine_that_refuses_a_swap_gets_no_traffic_until_it_took_a_later_one(tmp_path: Path):
    async with ScriptedEngine(answer) as one, ScriptedEngine(answer) as two, fleet_of(one, two) as (fleet, server):
        two.refuse_swap["update_weights"] = 500
        assert await publish(fleet, tmp_path, 1) == ["engine-0"]
        assert routable(server) == {"engine-0": True, "engine-1": False}
        two.refuse_swap.clear()
        assert await publish(fleet, tmp_path, 2) == ["engine-0", "engine-1"]
        assert routable(server) == {"engine-0": True, "engine-1": True}
        assert server.gateway.pools.shared.table.current_version == 2


async def test_a_swap_that_no_engine_took_fails_and_raises_no_version(tmp_path: Path):
    async with ScriptedEngine(answer) as one, fleet_of(one) as (fleet, server):
        one.refuse_swap["finish_weight_update"] = 500
        with pytest.raises(SwapError, match="no engine took version 1: engine engine-0 did not get version 1"):
            await publish(fleet, tmp_path, 1)
        assert server.gateway.pools.shared.table.current_version == 0
        assert routable(server) == {"engine-0": False}


async def test_a_trainer_that_fails_inside_a_swap_leaves_no_engine_serving_half_of_it(tmp_path: Path):
    async with ScriptedEngine(answer) as one, fleet_of(one) as (fleet, server):
        with pytest.raises(ZeroDivisionError):
            await publish_half(fleet, tmp_path)
        assert routable(server) == {"engine-0": False}


async def test_a_gateway_that_is_gone_is_named(tmp_path: Path):
    async with ScriptedEngine(answer) as one, fleet_of(one) as (fleet, server):
        await server.stop()
        with pytest.raises(RunError, match="the gateway did not take PUT /engines/engine-0"):
            await publish(fleet, tmp_path, 1)
