"""The driver and the rollout worker of one run, in one process, over an engine and a gateway that are there already.

    python -m bench.async_loop.driver PLAN --engine-url U --gateway-url U --gateway-pid N --store U --folder F

It is the loop of `agentrl train` with a twin for the trainer. What is printed last is one `Played` as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import os
import pstats
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import uvloop

from agentrl.cluster.fleet import EngineFleet
from agentrl.cluster.gateway_engines import GatewayEngines
from agentrl.engine.control import EngineControl
from agentrl.observe.recorder import Recorder
from agentrl.observe.records import StepRecord
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.sql import SqlStore
from agentrl.train.batch_log import DiskBatchLog
from agentrl.train.config import (
    AlgorithmConfig,
    CheckpointConfig,
    EvaluationConfig,
    LoopConfig,
    StalenessConfig,
)
from agentrl.train.evaluate import Evaluator
from agentrl.train.evaluations import Evaluations
from agentrl.train.loop import TrainLoop
from agentrl.train.producer import GroupProducer
from agentrl.train.publish import GroupPublisher
from agentrl.train.saver import CheckpointSaver
from agentrl.types import Task
from agentrl_trainers.algorithms.advantages.grpo import group_advantages
from bench.async_loop.arithmetic import Played
from bench.async_loop.environment import SlowTool
from bench.async_loop.twins import NoScorer, TimedTrainer
from bench.async_loop.window import played
from bench.async_loop.workload import Plan
from bench.gateway.gateway_process import sample_lags
from bench.gateway.quantile import quantile

ADMIN_KEY = "AGENTRL_ADMIN_KEY"
ENVIRONMENT = "bench.async_loop.environment:SlowTool"
EVERY_S = 0.2


class Window:
    """What is measured, from `begin` to `end`: when, and the processor time and memory of gateway and driver."""

    def __init__(self, gateway_pid: int) -> None:
        self._processes = {"driver": psutil.Process(), "gateway": psutil.Process(gateway_pid)}
        self._gateway_pid = gateway_pid
        self._lags_ms: list[float] = []
        self._rss_mib = dict.fromkeys(self._processes, 0.0)
        self._cpu_s: dict[str, float] = {}
        self.began = self.ended = 0.0

    def begin(self) -> None:
        os.kill(self._gateway_pid, signal.SIGUSR1)  # forgets its lags until now
        self._lags_ms.clear()
        self._cpu_s, self.began = self._cpu(), time.time()

    def end(self) -> None:
        self.ended, cpu = time.time(), self._cpu()
        self._cpu_s = {name: cpu[name] - self._cpu_s[name] for name in cpu}
        self._lags_ms = list(self._lags_ms)  # those until now

    def played(self, groups: int, steps: Sequence[StepRecord], store: SqlStore) -> Played:
        found = played(
            self.began,
            self.ended,
            groups=groups,
            steps=[msgspec.to_builtins(step) for step in steps],
            trajectories=store.iterate(mode="train"),
        )
        lag_ms = quantile(self._lags_ms, 0.99)
        return msgspec.structs.replace(found, cpu_s=self._cpu_s, rss_mib=self._rss_mib, lag_p99_ms=lag_ms)

    async def watch(self) -> None:
        sampling = asyncio.create_task(sample_lags(self._lags_ms))
        try:
            while True:
                for name, process in self._processes.items():
                    self._rss_mib[name] = max(self._rss_mib[name], process.memory_info().rss / 2**20)
                await asyncio.sleep(EVERY_S)
        finally:
            sampling.cancel()

    def _cpu(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: float(spent.user + spent.system) for name, spent in times.items()}


class AtStep:
    """A sink of the recorder that opens the window when the loop is warm, and closes it after the last step."""

    def __init__(self, window: Window, plan: Plan) -> None:
        self._window, self._plan = window, plan
        self.steps: list[StepRecord] = []  # in the window

    def stepped(self, record: Any) -> None:
        if record.step > self._plan.warm_steps:
            self.steps.append(record)
        if record.step == self._plan.warm_steps:
            self._window.begin()
        elif record.step == self._plan.steps:
            self._window.end()

    def evaluated(self, record: Any) -> None: ...

    def resumed(self, record: Any) -> None: ...

    def close(self) -> None: ...


def _tasks() -> Iterator[Task]:
    return (msgspec.structs.replace(task, env_id=ENVIRONMENT) for task in SlowTool.tasks("train", 0))


def _read(store: SqlStore, group_id: str) -> None:
    """What a producer does before it hands a group over."""
    for _ in store.iterate(mode="train", group_id=group_id):
        pass


async def play(plan: Plan, given: argparse.Namespace) -> Played:
    env_kwargs = {"workload": msgspec.to_builtins(plan.workload)}
    config = RolloutConfig(
        group_size=plan.group_size, concurrency=plan.concurrency, max_turns=64, max_tokens=plan.max_tokens
    )
    worker = RolloutWorker(config, given.gateway_url, os.environ[ADMIN_KEY], env_kwargs=env_kwargs)
    control = EngineControl(given.engine_url, engine_id="engine-0")
    store = SqlStore(given.store)
    routing = GatewayEngines(given.gateway_url, os.environ[ADMIN_KEY], patience_s=0.0)
    fleet = EngineFleet(
        [control],
        mode=plan.swap_mode,  # type: ignore[arg-type]
        routing=routing,
        record=store.record_swap,
    )
    window = Window(given.gateway_pid)
    watching = asyncio.create_task(window.watch())
    try:
        await fleet.register()
        if plan.max_lag is None:
            return await _only_sample(plan, worker, store, window)
        return await _train(plan, plan.max_lag, worker, store, fleet, window, given.folder)
    finally:
        watching.cancel()
        await worker.close()
        await fleet.close()
        await routing.close()
        store.close()


async def _train(
    plan: Plan, max_lag: int, worker: Any, store: SqlStore, fleet: EngineFleet, window: Window, folder: Path
) -> Played:
    loop = LoopConfig(steps=plan.steps, groups_per_step=plan.groups_per_step)
    staleness, evaluation = StalenessConfig(max_lag=max_lag), EvaluationConfig(tasks=0)
    trainer, start = TimedTrainer(plan.train_s, folder), AtStep(window, plan)
    producer = GroupProducer(
        tasks=_tasks(),
        rollouts=worker,
        scorer=NoScorer(),
        store=store,
        loop=loop,
        staleness=staleness,
        group_size=plan.group_size,
    )
    recorder = Recorder([start])
    exams = Evaluator(tasks=[], rollouts=worker, scorer=NoScorer(), config=evaluation, progress=lambda *_: None)
    await TrainLoop(
        config=loop,
        staleness=staleness,
        algorithm=AlgorithmConfig(),
        evaluation=evaluation,
        log=DiskBatchLog(folder / "batches"),
        saver=CheckpointSaver(
            folder / "checkpoints", CheckpointConfig(every=plan.steps + 1, trainer_state=False), trainer
        ),
        producer=producer,
        evaluations=Evaluations(exams, evaluation, recorder),
        trainer=trainer,
        publisher=GroupPublisher(trainer=trainer, engines=fleet),
        estimate=group_advantages,
        recorder=recorder,
    ).run()
    return window.played(len(start.steps) * plan.groups_per_step, start.steps, store)


async def _only_sample(plan: Plan, worker: RolloutWorker, store: SqlStore, window: Window) -> Played:
    """So many groups under way at a time, as if a trainer took each at once."""
    tasks, first, last = _tasks(), asyncio.Event(), asyncio.Event()
    done, numbers = itertools.count(1), itertools.count()

    async def one_after_another() -> None:
        while True:
            number = next(numbers)
            group = await worker.run_group(f"{number:06d}", next(tasks), size=plan.group_size, version=0, mode="train")
            await asyncio.to_thread(_read, store, group.group_id)
            count = next(done)
            if count == plan.warm_steps * plan.groups_per_step:
                first.set()
            if count == plan.steps * plan.groups_per_step:
                last.set()

    playing = [asyncio.create_task(one_after_another()) for _ in range(plan.outstanding)]
    try:
        await first.wait()
        window.begin()
        await last.wait()
        window.end()
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
    return window.played((plan.steps - plan.warm_steps) * plan.groups_per_step, [], store)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--engine-url", required=True)
    parser.add_argument("--gateway-url", required=True)
    parser.add_argument("--gateway-pid", type=int, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    plan = msgspec.json.decode(given.plan.read_bytes(), type=Plan)
    profile = cProfile.Profile()
    if plan.profile:
        profile.enable()
    found = uvloop.run(play(plan, given))
    if plan.profile:
        profile.disable()
        with Path(plan.profile).open("w") as file:
            pstats.Stats(profile, stream=file).sort_stats("tottime").print_stats(60)
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
