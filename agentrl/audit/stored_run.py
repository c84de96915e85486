"""Reads a run directory, leniently: what is not written is None, what is unreadable is a ConfigError."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agentrl.assets import resolve_model
from agentrl.errors import ConfigError
from agentrl.rundir import RunDirectory


@dataclass(frozen=True)
class StoredRun:
    """`runs/<name>/` as it lies on disk."""

    path: Path
    store_url: str
    weights: dict[int, Path]  # version -> model directory in Hugging Face form; 0 is the model the run began with
    max_lag: int | None
    ended: bool  # by itself; not interrupted, failed or still going on

    @classmethod
    def open(cls, path: Path) -> StoredRun:
        """Raises ConfigError when this is no run directory."""
        if not path.is_dir():
            raise ConfigError(f"{path} is not a directory; give the directory of a run, runs/demo for one")
        directory = RunDirectory(path)
        config, summary = _read(directory.config), _read(directory.summary)
        url = config.get("store_url")
        if not directory.store.is_file() and not isinstance(url, str):
            raise ConfigError(
                f"{path} is not a run directory: it has no trajectories.db, and no config.json that names a store_url"
            )
        staleness = config.get("staleness")
        max_lag = staleness.get("max_lag") if isinstance(staleness, dict) else None
        return cls(
            path=path,
            store_url=url if isinstance(url, str) else directory.store_url,
            weights=_initial(config.get("model")) | _checkpoints(directory.checkpoints),
            max_lag=max_lag if isinstance(max_lag, int) else None,
            ended=summary.get("ended") == "done",
        )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _initial(model: object) -> dict[int, Path]:
    """Left out when the model is not on this machine: a run directory may have been copied from another."""
    try:
        return {0: resolve_model(str(model))} if model is not None else {}
    except (ConfigError, OSError, ValueError):  # OSError, ValueError: no path at all
        return {}


def _checkpoints(path: Path) -> dict[int, Path]:
    """`v<k>` directories that hold a model; one without config.json is still being written, or was not finished."""
    found = (entry for entry in sorted(path.glob("v*")) if (entry / "config.json").is_file())
    return {int(match[1]): entry for entry in found if (match := re.fullmatch(r"v([0-9]+)", entry.name))}
