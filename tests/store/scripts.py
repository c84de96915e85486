"""Runs a script that uses the store in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Talks through pipes; the builders of tests/support can be imported."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
    )
