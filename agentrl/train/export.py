"""A Hugging Face directory out of a run's checkpoint: checked, and whole or not there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from agentrl import manifest
from agentrl.errors import CheckpointError, ConfigError
from agentrl.rundir import RunDirectory
from agentrl.train.checkpoints import AVERAGE, OWN, TRAINER, Checkpoints
from agentrl.train.config import CheckpointConfig
from agentrl.train.retention import Retention


class Exported(NamedTuple):
    """What was written."""

    version: int
    num_bytes: int


def export(source: Path, target: Path, *, version: str | None = None, ema: bool = False) -> Exported:
    """Copy the weights of `source`, a run or one of its checkpoints, to `target`, with config and tokenizer.

    version: of a run, a number, "latest" (also None) or "best". ema: the averaged weights instead of the last ones.
    Raises ConfigError when there is no such thing or `target` is taken, CheckpointError when a file is damaged.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already; give a directory that is empty or not there yet")
    checkpoint = _checkpoint(source, version)
    folder = f"{AVERAGE}/" if ema else ""

    def wanted(name: str) -> bool:
        inside = name.removeprefix(folder)
        return name.startswith(folder) and inside not in OWN and not inside.startswith((f"{TRAINER}/", f"{AVERAGE}/"))

    sealed = manifest.check(checkpoint, wanted)
    names = [name for name in sealed.files if wanted(name)]
    if not names:
        raise ConfigError(f"{checkpoint} holds no averaged weights: the run had no trainer.ema; leave --ema out")
    _copy(checkpoint, target, {name: name.removeprefix(folder) for name in names})
    return Exported(sealed.version, sum(sealed.files[name].bytes for name in names))


def _checkpoint(source: Path, version: str | None) -> Path:
    if (source / manifest.NAME).is_file():
        if version is not None:
            raise ConfigError(f"{source} is one checkpoint, so --version {version} says nothing; give the run instead")
        return source
    run = RunDirectory(source)
    if not run.checkpoints.is_dir():
        raise ConfigError(
            f"{source} is neither a run nor a whole checkpoint (it has no checkpoints/ and no {manifest.NAME}); "
            "give runs/demo or runs/demo/checkpoints/v40 for one"
        )
    held = Checkpoints(run.checkpoints, _retention_of(run))
    number = _number(held, version or "latest", source)
    if not held.path(number).is_dir():
        whole = ", ".join(str(one) for one in held.whole())
        raise ConfigError(f"{source} has no checkpoint of version {number}; it has {whole or 'none that is whole'}")
    return held.path(number)


def _number(held: Checkpoints, version: str, source: Path) -> int:
    if version.isdecimal():
        return int(version)
    if version not in ("latest", "best"):
        raise ConfigError(f"--version {version} is none; give a number, latest or best")
    found = held.latest() if version == "latest" else held.best()
    if found is None:
        scored = "" if version == "latest" else " with a score"
        raise CheckpointError(f"{source} has no whole checkpoint{scored}; train it further, or give another run")
    return found


def _retention_of(run: RunDirectory) -> Retention:
    """What was best to the run; the default when its config.json does not say."""
    try:
        return CheckpointConfig(best_by=json.loads(run.config.read_text())["checkpoint"]["best_by"]).retention
    except (OSError, ValueError, LookupError, TypeError):
        return Retention()


def _copy(checkpoint: Path, target: Path, names: dict[str, str]) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        for name, new_name in names.items():
            path = partial / new_name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint / name, path)
        if target.is_dir():
            target.rmdir()  # empty: checked
        partial.rename(target)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error}; give a directory with room for it") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
