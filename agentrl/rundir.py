"""Where things lie in a run directory, `runs/<name>/`: for who writes it, views it, resumes or audits it."""

from __future__ import annotations

from pathlib import Path


class RunDirectory:
    """Paths of one run; nothing is read or made. There is nothing secret in any of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.json"  # resolved
        self.metrics = root / "metrics.jsonl"
        self.summary = root / "summary.json"
        self.store = root / "trajectories.db"
        self.checkpoints = root / "checkpoints"  # v<version>, in Hugging Face form
        self.batches = root / "batches"  # v<version>: what is trained from it, until a later checkpoint is whole
        self.lock = root / "lock"  # held while the run goes on
        self.tensorboard = root / "tensorboard"
        self.traces = root / "traces"
        self.logs = root / "logs"

    @property
    def driver_log(self) -> Path:
        return self.logs / "driver.log"

    @property
    def store_url(self) -> str:
        """SQLAlchemy URL of the run's own database."""
        return f"sqlite:///{self.store.resolve()}"
