"""A run whose judge dies, lies, cuts, shuffles and stalls: nothing is lost, nothing is trained with a wrong reward."""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from reward_server import answering, serving
from twins import TwinEngines, TwinRollouts, TwinTrainer

from agentrl.observe.recorder import Recorder
from agentrl.reward.config import RewardConfig, ServiceConfig
from agentrl.store.base import TRAINED
from agentrl.store.sql import SqlStore
from agentrl.train.batch_log import MemoryBatchLog
from agentrl.train.config import AlgorithmConfig, CheckpointConfig, EvaluationConfig, LoopConfig, StalenessConfig
from agentrl.train.evaluate import Evaluator
from agentrl.train.evaluations import Evaluations
from agentrl.train.loop import TrainLoop
from agentrl.train.producer import GroupProducer
from agentrl.train.publish import GroupPublisher
from agentrl.train.saver import CheckpointSaver
from agentrl.train.score import GroupScorer
from agentrl.types import Batch, Task
from agentrl_trainers.algorithms.advantages.grpo import group_advantages

STEPS, GROUPS, SIZE = 10, 3, 4
POISONED, SLOW, NOT_A_NUMBER = "000002-t2-1", "000004-t4-0", "000006-t6-3"
CUT, DEATH_AT, DEATH_S = 5, 4, 2.0  # each fifth answer is short; the fourth request is the last before it dies


def judged(session_id: str) -> float:
    """What the judge thinks of a session."""
    return (zlib.crc32(session_id.encode()) % 1000) / 1000


class Judge:
    """Every fault of the issue, on a schedule by request."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.requests = 0
        self.dead = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_post("/score", self.score)
        app.router.add_get("/health", self.health)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def die_for_a_while(self) -> None:
        await self.dead.wait()
        port = int(self.url.rpartition(":")[2])
        await self.stop()
        await asyncio.sleep(DEATH_S)
        await self.start(port)

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def score(self, request: web.Request) -> web.Response:
        ids = [item["id"] for item in (await request.json())["items"]]
        self.asked.update(ids)
        self.requests += 1
        if self.requests == DEATH_AT:
            self.dead.set()
        if POISONED in ids:
            return web.Response(status=500, text="poison")
        if SLOW in ids:
            await asyncio.sleep(30)
        results: list[dict[str, Any]] = [
            {"id": one, "reward": float("nan") if one == NOT_A_NUMBER else judged(one)} for one in reversed(ids)
        ]
        if self.requests % CUT == 0:
            results.pop()
        return web.Response(text=json.dumps({"results": results}), content_type="application/json")


@pytest.mark.parametrize("on_error", ["retry", "defer"])
async def test_a_run_survives_every_fault_of_its_judge_and_trains_no_wrong_reward(
    tmp_path: Path, on_error: str
) -> None:
    judge = Judge()
    await judge.start()
    store = SqlStore.at(tmp_path / "trajectories.db")
    dying = asyncio.create_task(judge.die_for_a_while())
    async with serving(answering(lambda item: {"reward": 1.0})) as steady:
        scorer = GroupScorer(
            RewardConfig(
                services=(
                    ServiceConfig(name="judge", url=judge.url, timeout_s=0.5, max_attempts=3, weight=2.0, batch_size=8),
                    ServiceConfig(name="steady", url=steady.url),
                ),
                on_error=on_error,  # type: ignore[arg-type]
            ),
            store,
        )
        recorder = await trained(tmp_path, store, scorer)
        await scorer.close()
    await dying
    await judge.stop()

    assert len(recorder.steps) == STEPS
    trajectories = {found.session_id: found for found in store.iterate(mode="train")}
    settled = {settlement.session_id: settlement for settlement in store.settlements()}
    assert settled.keys() == trajectories.keys(), "every trajectory that was sampled is trained or dropped by name"
    assert len(trajectories) >= STEPS * GROUPS * SIZE
    for session_id, settlement in settled.items():
        if settlement.outcome == TRAINED and settlement.tokens:
            env = float(int(session_id[-1]) % 2)
            assert trajectories[session_id].reward == pytest.approx(env + 2 * judged(session_id) + 1.0)
    for session_id in (POISONED, SLOW, NOT_A_NUMBER):
        assert trajectories[session_id].reward is None
        assert settled[session_id].tokens == 0
        assert trajectories[session_id].components["judge"] is None
        assert trajectories[session_id].components["steady"] == 1.0
    missing = [
        one for one, found in trajectories.items() if found.reward is None and settled[one].outcome != "run_ended"
    ]
    assert sorted(missing) == sorted([POISONED, SLOW, NOT_A_NUMBER])
    stats = scorer.stats()
    assert stats["judge"]["failures"] >= 3
    assert stats["judge"]["outage_s"] > DEATH_S / 2, "the waiting is the judge's"
    assert stats["steady"]["outage_s"] == 0.0
    assert recorder.summary(ended="done").reward_parts["judge"]["failures"] >= 3
    store.close()


async def trained(tmp_path: Path, store: SqlStore, scorer: GroupScorer) -> Recorder:
    engines = TwinEngines(store)
    rollouts = TwinRollouts(store, engines)

    async def all_faults_are_told(batch: Batch) -> None:
        """The last step but one waits for the slow item: else the run might end before its time limit."""
        async with asyncio.timeout(40):
            while batch.version == STEPS - 2 and scorer.stats()["judge"]["failures"] < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    trainer = TwinTrainer(tmp_path, on_step=all_faults_are_told)
    recorder = Recorder([])
    config = LoopConfig(steps=STEPS, groups_per_step=GROUPS, group_timeout_s=60.0)
    staleness, evaluation = StalenessConfig(max_lag=1), EvaluationConfig(tasks=0)
    loop = TrainLoop(
        config=config,
        staleness=staleness,
        algorithm=AlgorithmConfig(),
        evaluation=evaluation,
        log=MemoryBatchLog(),
        saver=CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(), trainer),
        producer=GroupProducer(
            tasks=(Task(id=f"t{number}", env_id="e", seed=number) for number in itertools.count()),
            rollouts=rollouts,
            scorer=scorer,
            store=store,
            loop=config,
            staleness=staleness,
            group_size=SIZE,
        ),
        evaluations=Evaluations(
            Evaluator(
                tasks=[], rollouts=rollouts, scorer=scorer, config=evaluation, progress=lambda what, done, total: None
            ),
            evaluation,
            recorder,
        ),
        trainer=trainer,
        publisher=GroupPublisher(trainer=trainer, engines=engines),
        estimate=group_advantages,
        recorder=recorder,
    )
    await loop.run()
    return recorder
