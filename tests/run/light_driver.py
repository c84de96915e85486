"""A driver that starts in seconds: the loop, the gateway over HTTP, rollouts, the SQLite store, checkpoints and the
batch log of a run, over a scripted engine and a trainer whose weights are the digest of what they were made of.

    PYTHONPATH=tests/rollout:tests/train python light_driver.py DIRECTORY STEPS GROUPS_PER_STEP

begins the run in the directory or goes on with it, as `agentrl train` and `--resume` do.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from calculator_script import MODEL, solve
from mortal import LineageTrainer
from twins import TwinScorer

from agentrl.cluster.run_lock import run_lock
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.control import EngineControl
from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.swap import WeightSwap
from agentrl.env import registry
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.sealing import seal_left_behind
from agentrl.gateway.server import GatewayServer
from agentrl.observe.files import JsonLines
from agentrl.observe.history import read_history
from agentrl.observe.recorder import Recorder
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.worker import RolloutWorker
from agentrl.rundir import RunDirectory
from agentrl.store.sql import SqlStore
from agentrl.train.batch_log import DiskBatchLog
from agentrl.train.config import AlgorithmConfig, CheckpointConfig, EvaluationConfig, LoopConfig, StalenessConfig
from agentrl.train.evaluate import Evaluator
from agentrl.train.evaluations import Evaluations
from agentrl.train.loop import TrainLoop
from agentrl.train.producer import GroupProducer
from agentrl.train.publish import GroupPublisher
from agentrl.train.resume import catch_up
from agentrl.train.saver import CheckpointSaver
from agentrl.types import SwapRecord
from agentrl_trainers.algorithms.advantages.grpo import group_advantages

GROUP_SIZE, MAX_LAG = 4, 1
TICK_S, TOKENS_A_TICK = 0.005, 8  # of the engine: so fast that most kills fall into episodes


class OneEngine:
    """The engine behind the gateway, as the fleet of a run keeps it."""

    def __init__(self, engine: ScriptedEngine, server: GatewayServer, store: SqlStore) -> None:
        self._control, self._store = EngineControl(engine.url, engine_id="engine-0"), store
        headers = {"Authorization": f"Bearer {server.admin_key}"}
        self._gateway = httpx.AsyncClient(base_url=server.url, headers=headers, trust_env=False)

    async def register(self) -> None:
        now = time.time()
        self._store.record_swap(
            SwapRecord(engine_id="engine-0", version=0, mode="boot", started_at=now, finished_at=now)
        )
        body = {"url": self._control.url, "id": "engine-0", "version": 0}
        (await self._gateway.post("/engines", json=body)).raise_for_status()

    @asynccontextmanager
    async def swap(self, version: int) -> AsyncIterator[WeightSwap]:
        swap = WeightSwap([self._control], version, "recompute")
        async with swap:
            yield swap
        for record in swap.records:
            self._store.record_swap(record)
        body = {"version": version, "routable": True}
        (await self._gateway.put("/engines/engine-0", json=body)).raise_for_status()

    async def close(self) -> None:
        await self._gateway.aclose()
        await self._control.close()


async def pace(engine: ScriptedEngine) -> None:
    while True:
        engine.allow(TOKENS_A_TICK)
        await asyncio.sleep(TICK_S)


async def drive(directory: RunDirectory, config: LoopConfig) -> None:
    resumed = directory.metrics.exists()
    store = SqlStore(directory.store_url)
    sealed = await seal_left_behind(store, "gateway", "cancelled", now=time.time())
    async with ScriptedEngine(solve) as engine:
        engine.hold()
        pacing = asyncio.create_task(pace(engine))
        server = GatewayServer(
            GatewayConfig(), renderer=Renderer.load(MODEL), engine_factory=HttpEngineClient, sink=store
        )
        worker = RolloutWorker(RolloutConfig(group_size=GROUP_SIZE), await server.start(), server.admin_key)
        engines = OneEngine(engine, server, store)
        await engines.register()
        recorder = Recorder([JsonLines(directory.metrics)], read_history(directory.metrics))
        loop = build(directory, config, store, worker, engines, recorder)
        print("ready", flush=True)
        if resumed:
            await catch_up(loop, store, sealed)
        await loop.run()
        recorder.close()
        pacing.cancel()
        await worker.close()
        await engines.close()
        await server.stop()
    store.close()


def build(
    directory: RunDirectory,
    config: LoopConfig,
    store: SqlStore,
    worker: RolloutWorker,
    engines: OneEngine,
    recorder: Recorder,
) -> TrainLoop:
    staleness = StalenessConfig(max_lag=MAX_LAG)
    evaluation = EvaluationConfig(tasks=0)
    trainer = LineageTrainer(directory.root, groups=1)
    log = DiskBatchLog(directory.batches)
    exams = Evaluator(tasks=[], rollouts=worker, scorer=TwinScorer(), config=evaluation, progress=lambda *_: None)
    return TrainLoop(
        config=config,
        staleness=staleness,
        algorithm=AlgorithmConfig(),
        evaluation=evaluation,
        log=log,
        saver=CheckpointSaver(directory.checkpoints, CheckpointConfig(every=4), trainer, log),
        producer=GroupProducer(
            tasks=iter(registry.tasks("agentrl/Calculator-v0", split="train", seed=0, count=1000)),
            rollouts=worker,
            scorer=TwinScorer(),
            store=store,
            loop=config,
            staleness=staleness,
            group_size=GROUP_SIZE,
        ),
        evaluations=Evaluations(exams, evaluation, recorder),
        trainer=trainer,
        publisher=GroupPublisher(trainer=trainer, engines=engines),
        estimate=group_advantages,
        recorder=recorder,
    )


def main() -> None:
    directory = RunDirectory(Path(sys.argv[1]))
    config = LoopConfig(steps=int(sys.argv[2]), groups_per_step=int(sys.argv[3]))
    directory.root.mkdir(parents=True, exist_ok=True)
    if not directory.config.exists():
        written = {"staleness": {"max_lag": MAX_LAG}, "loop": config.model_dump()}
        directory.config.write_text(json.dumps(written))
    with run_lock(directory.lock):
        asyncio.run(drive(directory, config))
    directory.summary.write_text(json.dumps({"ended": "done"}))


if __name__ == "__main__":
    main()
