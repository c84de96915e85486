"""One evaluation, from its configuration to its report; a stopped one goes on where it was."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from agentrl.assets import resolve_model
from agentrl.cluster.logs import log_to
from agentrl.env import registry
from agentrl.errors import ConfigError
from agentrl.evaluate.config import EvaluationRunConfig
from agentrl.evaluate.files import EvaluationDirectory, missing_samples
from agentrl.evaluate.policy import ending_cleanly, endpoint_policy, served_model
from agentrl.evaluate.records import EpisodeResult, EvaluationSummary
from agentrl.evaluate.report import print_report
from agentrl.evaluate.runner import EvaluationRunner
from agentrl.evaluate.statistics import by_task, summarise
from agentrl.rollout.ports import Gateway
from agentrl.rollout.worker import RolloutWorker, probe
from agentrl.store.sql import SqlStore
from agentrl.train.score import GroupScorer
from agentrl.train.tasks import held_out_tasks
from agentrl.types import Task

logger = logging.getLogger(__name__)

Left = list[tuple[Task, list[int]]]


def run_evaluation(
    config: EvaluationRunConfig, root: Path, console: Console, *, ks: Sequence[int], rows: int, overwrite: bool = False
) -> EvaluationSummary:
    """Belongs in the main thread. `ks` of pass@k; the report shows `rows` tasks.

    Raises ConfigError before anything was started, another AgentRLError when the evaluation could not go on, and
    KeyboardInterrupt; what was played until then is kept, and the next call goes on from there.
    """
    if config.checkpoint is not None and not root.exists():
        resolve_model(config.checkpoint)  # what is misspelt leaves no directory
    tasks = _tasks(config)
    sources = {source.name: source for source in config.environment.sources}
    asyncio.run(probe(tasks[0], sources[tasks[0].source].options, config.rollout))
    directory = EvaluationDirectory(root)
    done = directory.open(config, overwrite=overwrite)
    log_to(directory.logs / "evaluation.log")
    together = any(part.scope == "group" for part in config.reward.parts) or (
        any(getattr(registry.described(source.id), "score_group", None) is not None for source in sources.values())
    )
    left = missing_samples(tasks, config.samples, done, together=together)
    if done and left:
        console.print(f"going on: {len(done)} episodes are in {root} already", soft_wrap=True)
    if left:
        _Evaluation(config, directory, console).play(left)
    asked = {task.id for task in tasks}
    episodes = [episode for episode in directory.read() if episode.task_id in asked and episode.sample < config.samples]
    summary = summarise(episodes, success_reward=config.success_reward, ks=ks)
    directory.summary.write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
    print_report(console, summary, by_task(episodes, config.success_reward), rows=rows)
    console.print(f"episodes, trajectories and this summary are in {root}", soft_wrap=True)
    return summary


def _tasks(config: EvaluationRunConfig) -> list[Task]:
    environment = config.environment
    tasks = held_out_tasks(environment, config.seed, config.tasks)
    if not tasks:
        raise ConfigError(f"split {environment.eval_split!r} of {environment.id} has no tasks; name another --split")
    ((most_common, count),) = Counter(task.id for task in tasks).most_common(1)
    if count > 1:
        raise ConfigError(
            f"{count} tasks of {environment.id} have the id {most_common!r}, so their episodes cannot be told apart; "
            "give each task an id of its own"
        )
    return tasks


class _Evaluation:
    def __init__(self, config: EvaluationRunConfig, directory: EvaluationDirectory, console: Console) -> None:
        self._config = config
        self._directory = directory
        self._console = console
        self._rewards: list[float] = []

    def play(self, left: Left) -> None:
        store = SqlStore(self._directory.store_url)
        try:
            if self._config.endpoint is not None:
                gateway = endpoint_policy(self._config.endpoint, self._config.rollout, store)
                with ending_cleanly() as interrupts:
                    self._run(lambda: gateway, gateway.check, left, store, interrupts.cancelling)
            else:
                assert self._config.checkpoint is not None
                with (
                    ending_cleanly() as interrupts,
                    served_model(
                        self._config.checkpoint,
                        self._config.engine,
                        self._config.rollout,
                        store=store,
                        logs=self._directory.logs,
                        say=self._say,
                    ) as client,
                ):
                    self._run(client, None, left, store, interrupts.cancelling)
        finally:
            store.close()

    def _run(
        self,
        client: Callable[[], Gateway],
        check: Callable[[], Awaitable[None]] | None,
        left: Left,
        store: SqlStore,
        cancelling: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        async def all_of_it() -> None:
            with cancelling():
                worker = RolloutWorker(
                    self._config.rollout,
                    "",
                    "",
                    env_kwargs=self._config.environment.options,
                    gateway=client(),
                    sources={source.name: source.options for source in self._config.environment.sources},
                )
                scorer = GroupScorer(self._config.reward.outside_of_training, store)
                try:
                    await scorer.check()
                    if check is not None:
                        await check()
                    await self._play(worker, scorer, left)
                finally:
                    await worker.close()
                    await scorer.close()

        try:
            asyncio.run(all_of_it())
        except asyncio.CancelledError:
            self._say(f"interrupted; run the same command again to go on from what is in {self._directory.root}")
            raise KeyboardInterrupt from None

    async def _play(self, worker: RolloutWorker, scorer: GroupScorer, left: Left) -> None:
        with self._progress() as progress:
            bar = progress.add_task("", total=sum(len(samples) for _, samples in left))

            def ended(results: Sequence[EpisodeResult]) -> None:
                self._rewards += [result.reward for result in results if result.reward is not None]
                mean = f"mean reward {fmean(self._rewards):.3f}" if self._rewards else "no reward yet"
                progress.update(bar, advance=len(results), description=mean)
                self._line(progress, bar)

            runner = EvaluationRunner(
                worker,
                concurrency=self._config.rollout.concurrency,
                keep=self._directory.append,
                ended=ended,
                score=scorer.score,
            )
            await runner.run(left)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def _line(self, progress: Progress, bar: TaskID) -> None:
        """Where there is no terminal, a line at each quarter."""
        shown = progress.tasks[bar]
        if not self._console.is_terminal and shown.total and shown.completed:
            before = shown.completed - 1
            if shown.completed * 4 // shown.total > before * 4 // shown.total:
                self._say(f"{shown.completed:.0f} of {shown.total:.0f} episodes, {shown.description}")

    def _say(self, line: str) -> None:
        logger.info("%s", line)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
