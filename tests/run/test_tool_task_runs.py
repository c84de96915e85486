"""examples/06_tool_tasks for real, shortened: each run file trains, and its audit is clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import ROOT, agentrl

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", ["sql", "python_code"])
def test_the_run_files_of_tool_tasks_train_and_pass_their_audit(tmp_path: Path, name: str) -> None:
    status, output = agentrl(
        *("train", str(ROOT / f"examples/06_tool_tasks/{name}.run.toml")),
        *("--set", "loop.steps=3", "--set", "loop.groups_per_step=4", "--set", "evaluation.tasks=16"),
        cwd=tmp_path,
        timeout=400,
    )
    assert status == 0, output
    summary = json.loads((tmp_path / "runs" / name / "summary.json").read_text())
    assert (summary["ended"], summary["steps"], summary["trajectories"]) == ("done", 3, 3 * 4 * 8)
    assert 0.1 < summary["success_start"] < 0.8, "neither hopeless nor solved: 16 tasks at about two fifths"
    status, output = agentrl("audit", f"runs/{name}", cwd=tmp_path)
    assert status == 0, output
    assert "clean" in output
