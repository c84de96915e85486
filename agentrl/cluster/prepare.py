"""Makes the run directory, or takes up what is there, and what writes into it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from agentrl.cluster.run_lock import run_lock
from agentrl.errors import ConfigError
from agentrl.observe.files import JsonLines
from agentrl.observe.recorder import Sink
from agentrl.observe.tensorboard import TensorBoard
from agentrl.rundir import RunDirectory
from agentrl.section import Section


@contextlib.contextmanager
def prepared(directory: RunDirectory, config: Section, *, overwrite: bool) -> Iterator[int]:
    """Makes the directories and writes the resolved configuration. Gives the lock (`agentrl.cluster.run_lock`).

    Raises ConfigError when a run is already there and may not be replaced, or when what is there is no run.
    """
    if holds_something(directory):
        if not overwrite:
            raise ConfigError(
                f"{directory.root} already holds a run; go on with it by `agentrl train --resume {directory.root}`, "
                "give another --name, or --overwrite to replace it"
            )
        if not directory.config.exists():
            raise ConfigError(
                f"{directory.root} is not empty and is no run directory (no config.json); give another --name"
            )
    directory.root.mkdir(parents=True, exist_ok=True)
    with run_lock(directory.lock) as lock:
        for path in directory.root.iterdir():
            if path != directory.lock:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        _make(directory, config)
        yield lock


def take_up(directory: RunDirectory, config: Section) -> None:
    """The same for a run that is there, under its lock. How its last start ended is forgotten."""
    directory.summary.unlink(missing_ok=True)
    _make(directory, config)


def holds_something(directory: RunDirectory) -> bool:
    root = directory.root
    return root.exists() and any(path != directory.lock for path in root.iterdir())


def sinks(directory: RunDirectory, display: Sink, *, tensorboard: bool) -> list[Sink]:
    """Where the numbers of every step go."""
    files: list[Sink] = [JsonLines(directory.metrics)]
    if tensorboard:
        files.append(TensorBoard(directory.tensorboard))
    return [*files, display]


def _make(directory: RunDirectory, config: Section) -> None:
    for path in (directory.checkpoints, directory.traces, directory.logs):
        path.mkdir(parents=True, exist_ok=True)
    partial = directory.config.with_suffix(".partial")
    partial.write_text(config.model_dump_json(indent=2) + "\n")
    partial.rename(directory.config)
