"""One training run, from its configuration to its summary: check, start, train, stop, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from agentrl import plugins
from agentrl.assets import resolve_model
from agentrl.cluster.cluster import RunCluster, first
from agentrl.cluster.logs import log_to
from agentrl.cluster.prepare import prepare
from agentrl.cluster.processes import descendants, end, processes_of, tag_this_process
from agentrl.cluster.ray_session import start_ray, stop_ray
from agentrl.config import RunConfig
from agentrl.engine.launch import listening_socket
from agentrl.env import registry
from agentrl.errors import ConfigError
from agentrl.observe.display import LineDisplay, LiveDisplay, display_for
from agentrl.observe.files import JsonLines, TensorBoard
from agentrl.observe.recorder import Recorder, Sink
from agentrl.observe.summary import print_summary, write_summary
from agentrl.reward.scorer import Scorer
from agentrl.rollout.worker import probe
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
    """Runs to the end, whatever the end is, and leaves no process behind.

    Raises ConfigError before anything was started, another AgentRLError when the run failed, KeyboardInterrupt when
    it was interrupted. `summary.json` is written in every case that got as far as a run directory.
    """
    model, eval_tasks = check(config)
    directory = RunDirectory(config.directory)
    prepare(directory, config, overwrite=overwrite)
    log_to(directory.driver_log)
    display = display_for(console, steps=config.loop.steps, name=config.name)
    sinks: list[Sink] = [JsonLines(directory.metrics), display]
    if config.tensorboard.enabled:
        sinks.append(TensorBoard(directory.tensorboard))
    recorder = Recorder(sinks)
    ended, error = "failed", None
    with no_process_left(), shared_memory() as weights:
        try:
            start_ray()  # in this thread: Ray's processes die with the thread that started them
            asyncio.run(_train(config, model, eval_tasks, directory, weights, recorder, display))
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
                console.print(f"interrupted at step {summary.steps}; what was sampled is in {directory.store}")
    print_summary(console, summary, recorder.steps, directory.root)


def check(config: RunConfig) -> tuple[Path, list[Task]]:
    """Everything that can be wrong is found here, before the first process: the model's directory, the held-out tasks.

    Raises ConfigError; EnvironmentFault when the environment cannot be made or reset; RewardError for a service that is
    not there.
    """
    if config.engine.urls:
        raise ConfigError(
            "engine.urls is for `agentrl serve`; `agentrl train` starts its engines itself, for they read its weights "
            "from this machine's memory. Leave it out and set engine.replicas"
        )
    for port in config.engine.ports:
        listening_socket(port).close()
    model = resolve_model(config.model)
    plugins.load("agentrl.advantages", config.algorithm.advantage)
    environment = config.environment
    tasks = list(
        registry.tasks(environment.id, split=environment.eval_split, seed=config.seed, count=config.evaluation.tasks)
    )
    if len(tasks) < config.evaluation.tasks:
        raise ConfigError(
            f"evaluation.tasks = {config.evaluation.tasks}, but split {environment.eval_split!r} of {environment.id} "
            f"has {len(tasks)}; ask for at most that many"
        )
    one = next(registry.task_stream(environment.id, split=environment.train_split, seed=config.seed), None)
    if one is None:
        raise ConfigError(f"split {environment.train_split!r} of {environment.id} has no tasks; give it at least one")
    asyncio.run(_try_outside(config, one))
    return model, tasks


async def _try_outside(config: RunConfig, task: Task) -> None:
    """What other people wrote: the environment is reset once, and every reward service is asked for its health."""
    await probe(task, config.environment.options, timeout_s=config.rollout.env_timeout_s)
    scorer = Scorer(config.reward)
    try:
        await scorer.check()
    finally:
        await scorer.close()


async def _train(
    config: RunConfig,
    model: Path,
    eval_tasks: list[Task],
    directory: RunDirectory,
    weights: Path,
    recorder: Recorder,
    display: LineDisplay | LiveDisplay,
) -> None:
    def say(line: str) -> None:
        logger.info("%s", line)
        display.say(line)

    store_url = config.store_url or directory.store_url
    store = SqlStore(store_url)
    cluster = RunCluster(
        config,
        model=model,
        directory=directory,
        weights=weights,
        store=store,
        store_url=store_url,
        say=say,
    )
    stop_on_signals()
    try:
        async with cluster:
            scorer = GroupScorer(config.reward, store)
            loop = build_loop(config, cluster, store, scorer, eval_tasks, directory, recorder)
            try:
                async with asyncio.TaskGroup() as group:
                    watcher = group.create_task(cluster.watch(), name="engine watch")
                    await loop.run()
                    watcher.cancel()
            except BaseExceptionGroup as errors:
                raise first(errors) from errors
            finally:
                await scorer.close()
    finally:
        store.close()


def build_loop(
    config: RunConfig,
    cluster: RunCluster,
    store: TrajectoryStore,
    scorer: GroupScorer,
    eval_tasks: list[Task],
    directory: RunDirectory,
    recorder: Recorder,
) -> TrainLoop:
    """The loop over the cluster's ports."""
    environment = config.environment
    return TrainLoop(
        config=config.loop,
        staleness=config.staleness,
        algorithm=config.algorithm,
        evaluation=config.evaluation,
        checkpoint=config.checkpoint,
        directory=directory.checkpoints,
        producer=GroupProducer(
            tasks=registry.task_stream(environment.id, split=environment.train_split, seed=config.seed),
            rollouts=cluster.rollouts,
            scorer=scorer,
            store=store,
            loop=config.loop,
            staleness=config.staleness,
            group_size=config.rollout.group_size,
        ),
        evaluator=Evaluator(tasks=eval_tasks, rollouts=cluster.rollouts, scorer=scorer, config=config.evaluation),
        trainer=cluster.trainer,
        publisher=WeightPublisher(trainer=cluster.trainer, engines=cluster.fleet, store=store),
        estimate=plugins.load("agentrl.advantages", config.algorithm.advantage),
        recorder=recorder,
    )


def stop_on_signals() -> None:
    """The first SIGINT or SIGTERM ends the run in order; a second one ends it at once."""
    current = asyncio.current_task()
    assert current is not None
    signals: list[int] = []

    def heard(number: int) -> None:
        signals.append(number)
        if len(signals) == 1:
            current.cancel()
        else:
            end(descendants(), grace_s=0.0)
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, heard, number)


@contextlib.contextmanager
def no_process_left() -> Iterator[None]:
    """Ends every process that the block started, however the block ended; a signal meanwhile does not stop that."""
    earlier = descendants()
    tag = tag_this_process()
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        processes = processes_of(tag, earlier=earlier)  # before Ray's shutdown, which orphans some
        stop_ray()
        if left := end([*processes, *processes_of(tag, earlier=earlier)]):
            logger.info("ended what was left: %s", ", ".join(left))


@contextlib.contextmanager
def shared_memory() -> Iterator[Path]:
    """A directory for weights on their way, in memory where the system has such, gone afterwards."""
    parent = Path("/dev/shm")
    usable = parent.is_dir() and os.access(parent, os.W_OK)
    path = Path(tempfile.mkdtemp(prefix="agentrl-", dir=parent if usable else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
