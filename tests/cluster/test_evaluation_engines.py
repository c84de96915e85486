"""Engines that only evaluate: no call of training reaches them, and they keep their version while training goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_builders import END, letters, renderer

from agentrl.cluster.fleet import EngineFleet
from agentrl.cluster.gateway_engines import GatewayEngines
from agentrl.cluster.parts.evaluation import RUN
from agentrl.cluster.transfer import check_transfer
from agentrl.config import RunConfig
from agentrl.digest import digest_of_file
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.control import EngineControl
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.keys import run_key
from agentrl.gateway.server import GatewayServer
from agentrl.types import SwapRecord, WeightGroup


def answer(prompt_ids: object, sampling: object, version: object) -> list[int]:
    return [*letters("ok"), END]


@asynccontextmanager
async def two_fleets(
    training: ScriptedEngine, evaluating: ScriptedEngine
) -> AsyncIterator[tuple[EngineFleet, EngineFleet, dict[str, httpx.AsyncClient]]]:
    """Both fleets, and who opens sessions for each."""
    server = GatewayServer(GatewayConfig(health_every_s=60), renderer=renderer(), engine_factory=HttpEngineClient)
    await server.start()
    keys = {"train": server.admin_key, "eval": run_key(server.admin_key, RUN)}
    engines = {"train": (training, "engine-0"), "eval": (evaluating, "engine-1")}
    fleets, clients, routings = {}, {}, []
    for mode, (engine, name) in engines.items():
        routings.append(routing := GatewayEngines(server.url, keys[mode], patience_s=1.0))
        fleets[mode] = EngineFleet(
            [EngineControl(engine.url, engine_id=name)],
            mode="recompute",
            routing=routing,
            record=lambda swap: None,
        )
        headers = {"Authorization": f"Bearer {keys[mode]}"}
        clients[mode] = httpx.AsyncClient(base_url=server.url, headers=headers, trust_env=False, timeout=30)
        await fleets[mode].register()
    try:
        yield fleets["train"], fleets["eval"], clients
    finally:
        for mode in engines:
            await clients[mode].aclose()
            await fleets[mode].close()
        for routing in routings:
            await routing.close()
        await server.stop()


async def publish(fleet: EngineFleet, directory: Path, version: int) -> None:
    path = directory / f"v{version}"
    path.write_bytes(b"weights")
    group = WeightGroup(
        version=version, index=0, count=1, path=str(path), digest=digest_of_file(path), names=("w",), num_bytes=7
    )
    async with fleet.swap(version) as swap:
        await swap.load(group)


async def opened(http: httpx.AsyncClient, mode: str) -> dict[str, Any]:
    response = await http.post("/sessions", json={"mode": mode, "reward_by": "admin"})
    assert response.status_code == 201, response.text
    return dict(response.json())


async def asked(http: httpx.AsyncClient, session: dict[str, Any]) -> int:
    """The version that answered."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "q"}]}
    headers = {"Authorization": f"Bearer {session['api_key']}"}
    response = await http.post(f"{session['base_url']}/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    trajectory = (await http.get(f"/sessions/{session['session_id']}/trajectory")).json()
    return int(trajectory["calls"][-1]["versions"][0]["version"])


async def test_an_evaluation_stays_with_its_engine_and_version_while_training_takes_the_next(tmp_path: Path) -> None:
    """Case 85, on engines of its own."""
    async with (
        ScriptedEngine(answer) as training,
        ScriptedEngine(answer) as evaluating,
        two_fleets(training, evaluating) as (train, evaluation, clients),
    ):
        await publish(train, tmp_path, 1)
        await publish(evaluation, tmp_path, 1)
        exam = await opened(clients["eval"], "eval")
        assert await asked(clients["eval"], exam) == 1
        await publish(train, tmp_path, 2)
        assert await asked(clients["eval"], exam) == 1, "its second turn"
        assert await asked(clients["train"], await opened(clients["train"], "train")) == 2
        assert (len(training.requests), len(evaluating.requests)) == (1, 2)
        reward = await clients["eval"].post(f"/sessions/{exam['session_id']}/reward", json={"reward": 1.0})
        assert reward.status_code == 200, "the worker of evaluations scores its own"
        await publish(evaluation, tmp_path, 2)
        assert await asked(clients["eval"], await opened(clients["eval"], "eval")) == 2


async def test_an_engine_that_starts_again_elsewhere_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    async with (
        ScriptedEngine(answer) as training,
        ScriptedEngine(answer) as evaluating,
        ScriptedEngine(answer) as again,
        two_fleets(training, evaluating) as (_, evaluation, clients),
    ):
        await publish(evaluation, tmp_path, 1)
        await evaluation.lost("engine-1")
        boot = SwapRecord(engine_id="engine-1", version=0, mode="boot", started_at=0.0, finished_at=1.0)
        await evaluation.back(EngineControl(again.url, engine_id="engine-1"), boot)
        await publish(evaluation, tmp_path, 2)
        own = (await clients["eval"].get("/engines")).json()["engines"]
        assert [(engine["id"], engine["url"]) for engine in own] == [("engine-1", again.url)]
        assert await asked(clients["eval"], await opened(clients["eval"], "eval")) == 2


def test_engines_that_all_get_each_version_at_once_are_no_place_for_evaluations() -> None:
    config = RunConfig.model_validate(
        {
            "name": "x",
            "environment": {"id": "agentrl/Calculator-v0"},
            "engine": {"weight_transfer": "nccl"},
            "evaluation": {"replicas": 1},
        }
    )
    with pytest.raises(ConfigError, match=r"evaluation\.replicas = 1, and engine\.weight_transfer = \"nccl\""):
        check_transfer(config)
