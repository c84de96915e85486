"""One training run, from its configuration to its summary: check, start, train, stop, leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentrl import plugins
from agentrl.cluster.check import check
from agentrl.cluster.cluster import RunCluster
from agentrl.cluster.frame import run_framed
from agentrl.cluster.logs import log_to
from agentrl.cluster.prepare import prepared, sinks, take_up
from agentrl.cluster.ray_session import start_ray
from agentrl.cluster.resumed import find_run, resumed_config
from agentrl.cluster.reward_services import RewardServices
from agentrl.cluster.run_lock import run_lock
from agentrl.cluster.signals import Interrupts
from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, Interrupted, first_error
from agentrl.gateway.sealing import Sealed, seal_left_behind
from agentrl.observe.display import LineDisplay, LiveDisplay, display_for
from agentrl.observe.history import History, read_history
from agentrl.observe.recorder import Recorder
from agentrl.observe.records import Summary
from agentrl.observe.summary import print_summary, write_summary
from agentrl.observe.traces import open_traces
from agentrl.rundir import RunDirectory
from agentrl.store.base import TrajectoryStore
from agentrl.store.patient import PatientStore
from agentrl.train.batch_log import DiskBatchLog, NoBatchLog
from agentrl.train.evaluate import Evaluator
from agentrl.train.evaluations import Evaluations
from agentrl.train.loop import TrainLoop
from agentrl.train.producer import GroupProducer
from agentrl.train.refill import Refill
from agentrl.train.resume import catch_up
from agentrl.train.saver import CheckpointSaver
from agentrl.train.score import GroupScorer
from agentrl.train.stopping import Stopping
from agentrl.train.tasks import training_tasks
from agentrl.train.tracing import StepTracer
from agentrl.types import StopReason, Task

logger = logging.getLogger(__name__)


def run_training(config: RunConfig, console: Console, *, overwrite: bool = False) -> None:
    """Runs to the end, whatever the end is, and leaves no process behind. Belongs in the main thread.

    Raises ConfigError before anything was started, another AgentRLError when the run failed, KeyboardInterrupt when
    it was interrupted. `summary.json` is written in every case that got as far as a run directory.
    """
    model, eval_tasks = check(config)
    directory = RunDirectory(config.directory)
    with prepared(directory, config, overwrite=overwrite) as lock:
        _drive(config, console, model, eval_tasks, directory, lock, history=None)


def resume_training(run: str, overrides: Sequence[str], console: Console) -> None:
    """Goes on with a run whose driver ended before its time, however it did. `run`: its directory or its name.

    Raises ConfigError when there is none, or it is done, or goes on; else like `run_training`.
    """
    directory = find_run(run)
    with run_lock(directory.lock) as lock:
        config = resumed_config(directory, overrides)
        model, eval_tasks = check(config)
        history = read_history(directory.metrics)
        take_up(directory, config)
        _drive(config, console, model, eval_tasks, directory, lock, history)


def _drive(
    config: RunConfig,
    console: Console,
    model: Path,
    eval_tasks: list[Task],
    directory: RunDirectory,
    lock: int,
    history: History | None,
) -> None:
    """`history`: of a run that goes on."""
    log_to(directory.driver_log)
    display = display_for(console, steps=config.loop.steps, name=config.name)
    recorder = Recorder(sinks(directory, display, tensorboard=config.tensorboard.enabled), history)
    run = _Run(config, model, eval_tasks, directory, recorder, display, resumed=history is not None)

    def ended(how: str, error: str | None) -> Summary:
        recorder.close()
        summary = recorder.summary(ended=how, error=error)
        write_summary(directory.summary, summary)
        if how != "done":
            how = f"{how} after step {summary.steps}"
            console.print(
                f"{how}; go on with: agentrl train --resume {directory.root}", highlight=False, soft_wrap=True
            )
        return summary

    summary = run_framed(run.train, lock=lock, ended=ended, start=lambda: start_ray(config.cluster, name=config.name))
    print_summary(console, summary, recorder.steps, directory.root)


@dataclass
class _Run:
    """A checked run, ready to start."""

    config: RunConfig
    model: Path
    eval_tasks: list[Task]
    directory: RunDirectory
    recorder: Recorder
    display: LineDisplay | LiveDisplay
    resumed: bool

    async def train(self, weights: Path, interrupts: Interrupts) -> None:
        store_url = self.config.store_url or self.directory.store_url
        store = PatientStore(store_url)
        rewards = RewardServices(
            self.config.reward,
            self.directory.logs,
            supervision=self.config.supervision,
            faulted=self.recorder.faulted,
            say=self._say,
        )
        scorer = GroupScorer(rewards.config, store)
        cluster = RunCluster(
            self.config,
            model=self.model,
            directory=self.directory,
            weights=weights,
            store=store,
            store_url=store_url,
            say=self._say,
            faulted=self.recorder.faulted,
            resumed=self.resumed,
        )
        stopping = Stopping()
        traces = open_traces(self.directory.traces, self.config.traces, run=self.config.name, swaps=store.swaps)
        self.recorder.traces = traces.counts
        try:
            with interrupts.cancelling(stopping.ask, self.config.checkpoint.on_interrupt_s):
                sealed = await self._end_broken_sessions(store)
                async with cluster, asyncio.TaskGroup() as group:
                    rewards.start(cluster.gateway_url, cluster.gateway_key)
                    watchers = [
                        group.create_task(watch(), name="watch")
                        for watch in (cluster.watch, cluster.watch_trainer, rewards.watch)
                    ]
                    loop = self._loop(cluster, store, scorer, stopping, StepTracer(traces))
                    await self._follow(cluster, loop, store, sealed)
                    for watcher in watchers:
                        watcher.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            await scorer.close()  # first: a service does not wait for answers that nobody wants
            rewards.stop()
            traces.close()
            store.close()

    async def _end_broken_sessions(self, store: TrajectoryStore) -> Sealed:
        """Before a gateway of the same name starts."""
        if not self.resumed:
            return Sealed()
        owner = self.config.gateway.name
        return await seal_left_behind(store, owner, StopReason.CANCELLED.value, now=time.time())

    async def _follow(self, cluster: RunCluster, loop: TrainLoop, store: TrajectoryStore, sealed: Sealed) -> None:
        try:
            if self.resumed:
                await catch_up(loop, store, sealed)
            await loop.run()
        except Interrupted:
            raise
        except AgentRLError as error:
            logger.error("the loop ended: %s", error)
            await cluster.raise_for_the_dead()
            raise

    def _loop(
        self,
        cluster: RunCluster,
        store: TrajectoryStore,
        scorer: GroupScorer,
        stopping: Stopping,
        tracer: StepTracer,
    ) -> TrainLoop:
        """The loop over the cluster's ports."""
        config = self.config
        estimate = plugins.load("agentrl.advantages", config.algorithm.advantage)
        log = DiskBatchLog(self.directory.batches) if config.checkpoint.trainer_state else NoBatchLog()
        saver = CheckpointSaver(self.directory.checkpoints, config.checkpoint, cluster.trainer, log)
        return TrainLoop(
            config=config.loop,
            staleness=config.staleness,
            algorithm=config.algorithm,
            evaluation=config.evaluation,
            log=log,
            saver=saver,
            producer=GroupProducer(
                tasks=training_tasks(config.environment, config.seed),
                rollouts=cluster.rollouts,
                scorer=scorer,
                store=store,
                loop=config.loop,
                staleness=config.staleness,
                group_size=config.rollout.group_size,
                refill=Refill.of(config.algorithm, estimate),
                success_reward=config.evaluation.success_reward,
                given_up=tracer.given_up,
            ),
            evaluations=Evaluations(
                Evaluator(
                    tasks=self.eval_tasks,
                    rollouts=cluster.rollouts if cluster.evaluation is None else cluster.evaluation.rollouts,
                    scorer=scorer,
                    config=config.evaluation,
                    progress=self.display.progress,
                ),
                config.evaluation,
                self.recorder,
                own=cluster.evaluation,
                beside=config.engine.sleep_level is None,
                checkpoints=saver.checkpoints,
                traces=tracer.traces,
                trajectories=lambda group_id: store.iterate(mode="eval", group_id=group_id),
            ),
            trainer=cluster.stepper,
            publisher=cluster.publisher,
            estimate=estimate,
            recorder=self.recorder,
            stopping=stopping,
            tracer=tracer,
        )

    def _say(self, line: str) -> None:
        logger.info("%s", line)
        self.display.say(line)
