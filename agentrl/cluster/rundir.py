"""The run directory: `runs/<name>/`, everything that a viewer, a resume or an audit needs, and nothing secret."""

from __future__ import annotations

import shutil
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.errors import ConfigError


class RunDirectory:
    """Paths of one run. `create` makes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.json"
        self.metrics = root / "metrics.jsonl"
        self.summary = root / "summary.json"
        self.store = root / "trajectories.db"
        self.checkpoints = root / "checkpoints"
        self.tensorboard = root / "tensorboard"
        self.traces = root / "traces"
        self.logs = root / "logs"

    @property
    def driver_log(self) -> Path:
        return self.logs / "driver.log"

    def create(self, config: RunConfig, *, overwrite: bool) -> None:
        """Raises ConfigError when a run is already there and may not be replaced."""
        if self.root.exists() and any(self.root.iterdir()):
            self._make_room(overwrite)
        for directory in (self.root, self.checkpoints, self.traces, self.logs):
            directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text(config.model_dump_json(indent=2) + "\n")

    def _make_room(self, overwrite: bool) -> None:
        if not overwrite:
            raise ConfigError(f"{self.root} already holds a run; give another --name, or --overwrite to replace it")
        if not self.config.exists():
            raise ConfigError(f"{self.root} is not empty and is no run directory (no config.json); give another --name")
        shutil.rmtree(self.root)
