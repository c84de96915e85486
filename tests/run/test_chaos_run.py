"""A real run under fire keeps its promises: groups accounted for, audit clean, nothing too old trained or left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SMALL = ("--set", "evaluation.tasks=0", "--set", "loop.groups_per_step=2")


def campaign(tmp_path: Path, *options: str) -> dict[str, object]:
    """Of `make chaos`, smaller. Fails with what it printed."""
    results = tmp_path / "chaos.json"
    command = [
        sys.executable,
        "-m",
        "bench.chaos",
        *options,
        *SMALL,
        f"--runs-dir={tmp_path / 'runs'}",
        f"--out={results}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(results.read_text())
    return found


def test_a_run_outlives_the_death_of_each_of_its_parts(tmp_path: Path):
    kinds = "kill engine,kill gateway,kill rollout worker,kill trainer rank"
    found = campaign(tmp_path, "--faults=4", "--steps=10", f"--kinds={kinds}", "--set=engine.replicas=1")
    struck = found["faults"]
    assert isinstance(struck, int)
    assert struck >= 3, "all but one that came while its part was being started again"
    assert found["broken"] == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["recompute", "keep", "drain"])
@pytest.mark.parametrize("bound", [0, 1, 4])
def test_no_token_older_than_the_bound_is_trained_while_engines_restart(bound: int, mode: str, tmp_path: Path):
    """Two engines, of which two die; the lag of every trained token is taken from the store."""
    options = [f"--max-lag={bound}", f"--swap-mode={mode}", "--faults=2", "--steps=8", "--kinds=kill engine"]
    found = campaign(tmp_path, *options)
    assert found["faults"] == 2
    assert found["broken"] == []
    oldest = found["oldest_trained"]
    assert isinstance(oldest, int)
    assert oldest <= bound


@pytest.mark.slow
def test_a_run_on_three_nodes_outlives_the_loss_of_one_that_comes_back(tmp_path: Path):
    found = campaign(tmp_path, "--nodes", "--faults=3", "--steps=10", "--kinds=kill node,kill engine,kill gateway")
    assert found["faults"] == 3
    assert found["broken"] == []
