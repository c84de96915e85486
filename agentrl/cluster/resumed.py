"""A run directory whose run is to go on: what is there, whether it can, and with which configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig, overridden, validated
from agentrl.errors import ConfigError
from agentrl.rundir import RunDirectory
from agentrl.train.batch_log import DiskBatchLog
from agentrl.train.checkpoints import Checkpoints

MAY_CHANGE = (
    "loop.steps",
    "loop.max_failed_groups",
    "loop.group_timeout_s",
    "loop.step_timeout_s",
    "cluster.",
    "rollout.workers",
    "rollout.concurrency",
    "rollout.adaptive.",
    "engine.replicas",
    "engine.ports",
    "engine.kv_cache_gib",
    "engine.weight_transfer",
    "engine.threads",
    "engine.timeouts.",
    "reward.services",
    "evaluation.at_end",
    "evaluation.timeout_s",
    "checkpoint.",
    "supervision.",
    "tensorboard.",
)
"""Keys that change neither what is sampled nor what is learnt from it; with a dot at the end, a whole table."""


def find_run(run: str) -> RunDirectory:
    """By its path, or by its name under `runs/`. Raises ConfigError when no run is there."""
    for root in (Path(run), Path("runs") / run):
        if (directory := RunDirectory(root)).config.is_file():
            return directory
    raise ConfigError(f"there is no run {run!r}: neither {run}/config.json nor runs/{run}/config.json is there")


def resumed_config(directory: RunDirectory, overrides: Sequence[str]) -> RunConfig:
    """The run's own configuration, with what may change. Raises ConfigError when the run cannot go on, and why."""
    data = _read(directory.config)
    _refuse_foreign_keys(overrides)
    before = _validated(directory, data, ())
    config = _validated(directory, data, overrides)
    if not config.checkpoint.trainer_state:
        raise ConfigError(
            f"{directory.root} cannot go on: checkpoint.trainer_state = false, so no trainer was saved; begin a run "
            "with `model` set to its last checkpoint"
        )
    ended, steps = _summary(directory)
    if ended == "done" and config.loop.steps <= steps:
        raise ConfigError(
            f"{directory.root} is done: {steps} of {config.loop.steps} steps; set more, "
            f"--set loop.steps={2 * steps}, to go on"
        )
    if config.loop.steps != before.loop.steps:
        _refuse_another_schedule(directory, before, config)
    return config


def _refuse_foreign_keys(overrides: Sequence[str]) -> None:
    keys = [override.partition("=")[0].strip() for override in overrides]
    foreign = [key for key in keys if not any(_covers(allowed, key) for allowed in MAY_CHANGE)]
    if foreign:
        allowed = ", ".join(f"{key}*" if key.endswith(".") else key for key in MAY_CHANGE)
        raise ConfigError(
            f"--set {', '.join(foreign)}: a run goes on as it began; what may change is {allowed}. For another run, "
            "begin one with `model` set to a checkpoint"
        )


def _covers(allowed: str, key: str) -> bool:
    return key.startswith(allowed) if allowed.endswith(".") else key == allowed


def _refuse_another_schedule(directory: RunDirectory, before: RunConfig, after: RunConfig) -> None:
    """The schedule follows from the number of steps, and what is trained again has to come out as it did."""
    saved = max(Checkpoints(directory.checkpoints).resumable(), default=0)
    again = [version for version in DiskBatchLog(directory.batches).versions() if version >= saved]
    if again:
        raise ConfigError(
            f"--set loop.steps={after.loop.steps}: {len(again)} steps since checkpoint v{saved} are to be trained "
            f"again first, under the schedule of {before.loop.steps} steps; go on without it, stop with Ctrl-C, which "
            "saves a checkpoint, and then set it"
        )


def _validated(directory: RunDirectory, data: dict[str, Any], overrides: Sequence[str]) -> RunConfig:
    kind = data.get("kind", "rl")
    if kind != "rl":
        raise ConfigError(f"{directory.root} is a run of kind {kind!r}, which cannot go on; start it again")
    return validated(RunConfig, overridden(json.loads(json.dumps(data)), overrides), directory.config)


def _summary(directory: RunDirectory) -> tuple[str | None, int]:
    """How the run ended, if its driver could say, and after how many steps."""
    if not directory.summary.is_file():
        return None, 0
    try:
        summary = json.loads(directory.summary.read_text())
    except ValueError:  # the disk was full
        return None, 0
    return summary.get("ended"), int(summary.get("steps", 0))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); restore it from a copy") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is no table; restore it from a copy")
    return data
