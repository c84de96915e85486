"""One log file per process of a run, under `logs/`."""

from __future__ import annotations

import logging
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(path: Path) -> None:
    """This process's log records, and nothing else, go to `path`. Libraries speak from WARNING on."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("agentrl").setLevel(logging.INFO)
    logging.getLogger("agentrl_trainers").setLevel(logging.INFO)
    logging.captureWarnings(True)
