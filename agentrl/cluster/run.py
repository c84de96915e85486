"""One training run, from its configuration to its summary: check, start, train, stop, leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentrl import plugins
from agentrl.cluster.check import check
from agentrl.cluster.cleanup import no_process_left
from agentrl.cluster.cluster import RunCluster
from agentrl.cluster.logs import log_to
from agentrl.cluster.prepare import prepare
from agentrl.cluster.ray_session import start_ray, stop_ray
from agentrl.cluster.shared_memory import shared_memory
from agentrl.cluster.signals import Interrupts, interruptible
from agentrl.config import RunConfig
from agentrl.env import registry
from agentrl.errors import AgentRLError, first_error
from agentrl.observe.display import LineDisplay, LiveDisplay, display_for
from agentrl.observe.files import JsonLines, TensorBoard
from agentrl.observe.recorder import Recorder, Sink
from agentrl.observe.summary import print_summary, write_summary
from agentrl.rundir import RunDirectory
from agentrl.store.base import TrajectoryStore
from agentrl.store.sql import SqlStore
from agentrl.train.evaluate import Evaluator
from agentrl.train.loop import TrainLoop
from agentrl.train.producer import GroupProducer
from agentrl.train.publish import WeightPublisher
from agentrl.train.score import GroupScorer
from agentrl.types import Task

logger = logging.getLogger(__name__)


def run_training(config: RunConfig, console: Console, *, overwrite: bool = False) -> None:
    """Runs to the end, whatever the end is, and leaves no process behind. Belongs in the main thread.

    Raises ConfigError before anything was started, another AgentRLError when the run failed, KeyboardInterrupt when
    it was interrupted. `summary.json` is written in every case that got as far as a run directory.
    """
    model, eval_tasks = check(config)
    directory = RunDirectory(config.directory)
    prepare(directory, config, overwrite=overwrite)
    log_to(directory.driver_log)
    display = display_for(console, steps=config.loop.steps, name=config.name)
    recorder = Recorder(_sinks(config, directory, display))
    run = _Run(config, model, eval_tasks, directory, recorder, display)
    ended, error = "failed", None
    with no_process_left(stop_ray) as end_now, interruptible(end_now) as interrupts, shared_memory() as weights:
        try:
            start_ray()  # in this thread: Ray's processes die with the thread that started them
            asyncio.run(run.train(weights, interrupts))
            ended = "done"
        except (KeyboardInterrupt, asyncio.CancelledError):
            ended = "interrupted"
            raise KeyboardInterrupt from None
        except Exception as failure:
            logger.exception("the run failed")
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            recorder.close()
            summary = recorder.summary(ended=ended, error=error)
            write_summary(directory.summary, summary)
            if ended == "interrupted":
                console.print(f"interrupted after step {summary.steps}; what was sampled is in {directory.store}")
    print_summary(console, summary, recorder.steps, directory.root)


def _sinks(config: RunConfig, directory: RunDirectory, display: Sink) -> list[Sink]:
    files: list[Sink] = [JsonLines(directory.metrics)]
    if config.tensorboard.enabled:
        files.append(TensorBoard(directory.tensorboard))
    return [*files, display]


@dataclass
class _Run:
    """A checked run, ready to start."""

    config: RunConfig
    model: Path
    eval_tasks: list[Task]
    directory: RunDirectory
    recorder: Recorder
    display: LineDisplay | LiveDisplay

    async def train(self, weights: Path, interrupts: Interrupts) -> None:
        store_url = self.config.store_url or self.directory.store_url
        store = SqlStore(store_url)
        scorer = GroupScorer(self.config.reward, store)
        cluster = RunCluster(
            self.config,
            model=self.model,
            directory=self.directory,
            weights=weights,
            store=store,
            store_url=store_url,
            say=self._say,
        )
        try:
            with interrupts.cancelling():
                async with cluster, asyncio.TaskGroup() as group:
                    watcher = group.create_task(cluster.watch(), name="cluster watch")
                    await self._follow(cluster, self._loop(cluster, store, scorer))
                    watcher.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        finally:
            await scorer.close()
            store.close()

    async def _follow(self, cluster: RunCluster, loop: TrainLoop) -> None:
        try:
            await loop.run()
        except AgentRLError:
            await cluster.raise_for_the_dead()
            raise

    def _loop(self, cluster: RunCluster, store: TrajectoryStore, scorer: GroupScorer) -> TrainLoop:
        """The loop over the cluster's ports."""
        config, environment = self.config, self.config.environment
        return TrainLoop(
            config=config.loop,
            staleness=config.staleness,
            algorithm=config.algorithm,
            evaluation=config.evaluation,
            checkpoint=config.checkpoint,
            directory=self.directory.checkpoints,
            producer=GroupProducer(
                tasks=registry.task_stream(environment.id, split=environment.train_split, seed=config.seed),
                rollouts=cluster.rollouts,
                scorer=scorer,
                store=store,
                loop=config.loop,
                staleness=config.staleness,
                group_size=config.rollout.group_size,
            ),
            evaluator=Evaluator(
                tasks=self.eval_tasks,
                rollouts=cluster.rollouts,
                scorer=scorer,
                config=config.evaluation,
                progress=self.display.progress,
            ),
            trainer=cluster.trainer,
            publisher=WeightPublisher(trainer=cluster.trainer, engines=cluster.fleet),
            estimate=plugins.load("agentrl.advantages", config.algorithm.advantage),
            recorder=self.recorder,
        )

    def _say(self, line: str) -> None:
        logger.info("%s", line)
        self.display.say(line)
