"""Makes the run directory."""

from __future__ import annotations

import shutil

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.rundir import RunDirectory


def prepare(directory: RunDirectory, config: RunConfig, *, overwrite: bool) -> None:
    """Makes the directories and writes the resolved configuration.

    Raises ConfigError when a run is already there and may not be replaced, or when what is there is no run.
    """
    if directory.root.exists() and any(directory.root.iterdir()):
        if not overwrite:
            raise ConfigError(
                f"{directory.root} already holds a run; give another --name, or --overwrite to replace it"
            )
        if not directory.config.exists():
            raise ConfigError(
                f"{directory.root} is not empty and is no run directory (no config.json); give another --name"
            )
        shutil.rmtree(directory.root)
    for path in (directory.root, directory.checkpoints, directory.traces, directory.logs):
        path.mkdir(parents=True, exist_ok=True)
    directory.config.write_text(config.model_dump_json(indent=2) + "\n")
