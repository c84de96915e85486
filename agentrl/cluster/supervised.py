"""A run that learns from data, from its configuration to its summary: trainer ranks on Ray, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentrl import plugins
from agentrl.assets import resolve_model
from agentrl.cluster.frame import run_framed
from agentrl.cluster.handles import RaySupervisedTrainer
from agentrl.cluster.logs import log_to
from agentrl.cluster.model_paths import for_ranks
from agentrl.cluster.prepare import prepared, sinks
from agentrl.cluster.ranks import ranks_of, start_ranks
from agentrl.cluster.ray_session import start_ray
from agentrl.cluster.signals import Interrupts
from agentrl.cluster.site import Site
from agentrl.engine.launch import cpu_only
from agentrl.kinds import SupervisedConfig
from agentrl.observe.display import LineDisplay, LiveDisplay, display_for
from agentrl.observe.summary import write_summary
from agentrl.observe.supervised import SUPERVISED, Summary, SupervisedRecorder, print_supervised_summary
from agentrl.rundir import RunDirectory
from agentrl.train.saver import CheckpointSaver
from agentrl.train.supervised.batches import steps_of
from agentrl.train.supervised.config import AnswersConfig, PairsConfig, TranscriptsConfig
from agentrl.train.supervised.dataset import Dataset, load_answer_pairs, load_scored_pairs, load_transcripts
from agentrl.train.supervised.loop import SupervisedLoop

logger = logging.getLogger(__name__)


def check_supervised(config: SupervisedConfig) -> tuple[Path, Dataset]:
    """The model's directory and the data: what can be wrong is found before the first process. Raises ConfigError."""
    model = resolve_model(config.model)
    plugins.load("agentrl.trainers", config.kind)
    for_ranks(config.trainer)
    return model, _load(config, model)


def run_supervised(config: SupervisedConfig, console: Console, *, overwrite: bool = False) -> None:
    """Runs to the end, whatever the end is, and leaves no process behind; see `run_training`."""
    with console.status("reading the data"):
        model, dataset = check_supervised(config)
    directory = RunDirectory(config.directory)
    with prepared(directory, config, overwrite=overwrite) as lock:
        _drive(config, console, model, dataset, directory, lock)


def _drive(
    config: SupervisedConfig, console: Console, model: Path, dataset: Dataset, directory: RunDirectory, lock: int
) -> None:
    log_to(directory.driver_log)
    loop = config.loop
    steps = steps_of(len(dataset.train), batch_size=loop.batch_size, epochs=loop.epochs, at_most=loop.steps)
    display = display_for(console, steps=steps, name=config.name, view=SUPERVISED)
    recorder = SupervisedRecorder(sinks(directory, display, tensorboard=config.tensorboard.enabled))
    run = _Run(config, model, dataset, steps, directory, recorder, display)

    def ended(how: str, error: str | None) -> Summary:
        recorder.close()
        summary = recorder.summary(
            kind=config.kind,
            ended=how,
            items=len(dataset.train),
            held_out_items=len(dataset.held_out),
            left_out=dataset.left_out,
            error=error,
        )
        write_summary(directory.summary, summary)
        if how == "interrupted":
            console.print(f"interrupted after step {summary.steps} of {steps}; see {directory.root}")
        return summary

    summary = run_framed(run.train, lock=lock, ended=ended, start=lambda: start_ray(config.cluster, name=config.name))
    print_supervised_summary(console, summary, directory.root, directory.checkpoints / f"v{steps}")


@dataclass
class _Run:
    """A checked run, ready to start."""

    config: SupervisedConfig
    model: Path
    dataset: Dataset
    steps: int
    directory: RunDirectory
    recorder: SupervisedRecorder
    display: LineDisplay | LiveDisplay

    async def train(self, shared_memory: Path, interrupts: Interrupts) -> None:
        self._say(str(self.dataset))
        with interrupts.cancelling():
            async with self._ranks() as trainer:
                await SupervisedLoop(
                    config=self.config.loop,
                    saver=CheckpointSaver(self.directory.checkpoints, self.config.checkpoint, trainer),
                    dataset=self.dataset,
                    trainer=trainer,
                    recorder=self.recorder,
                    seed=self.config.seed,
                    asks_reference=self.config.kind == "dpo",
                ).run()

    @asynccontextmanager
    async def _ranks(self) -> AsyncIterator[RaySupervisedTrainer]:
        import ray

        config, site = self.config, Site(self.config.cluster)
        await site.open(engines=0, gpus_each=1, ranks=ranks_of(config.trainer), cpus_only=cpu_only())
        await site.check(model=self.model, run=self.directory.root.resolve())
        ranks = start_ranks(
            config.kind,
            config.trainer,
            model=self.model,
            total_steps=self.steps,
            logs=self.directory.logs.resolve(),
            site=site,
        )
        try:
            trainer = RaySupervisedTrainer(ranks, timeout_s=config.loop.step_timeout_s)
            await trainer.setup()
            self._say(f"trainer ready: {len(ranks)} rank(s)")
            yield trainer
        finally:
            for actor in ranks:
                ray.kill(actor)
            site.release()

    def _say(self, line: str) -> None:
        logger.info("%s", line)
        self.display.say(line)


def _load(config: SupervisedConfig, model: Path) -> Dataset:
    data = config.data
    if isinstance(data, TranscriptsConfig):
        return load_transcripts(data, model, config.seed)
    if isinstance(data, AnswersConfig):
        return load_answer_pairs(data, model, config.seed)
    assert isinstance(data, PairsConfig)
    return load_scored_pairs(data, model, config.seed)
