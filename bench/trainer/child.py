"""A measurement in a process of its own: its memory is its own, and so is its process group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900


def figures_of(module: str, *arguments: str, threads: int = 1) -> dict[str, Any]:
    """What `python -m module` printed last, as JSON. Ends the benchmark with its error when it failed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"bench-trainer: {module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
