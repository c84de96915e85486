"""An agent that is no Python, trained for real: vLLM, Ray, DeepSpeed, and a shell script that asks with curl."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import ROOT, Command, agentrl

from agentrl.store.sql import SqlStore

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = ROOT / "examples" / "04_agent_programs"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on this machine")
def test_a_shell_script_trains_for_three_steps_and_passes_its_audit(tmp_path: Path):
    """examples/04_agent_programs/shell.toml as it is, but for where its files are."""
    command = Command(
        "train", str(EXAMPLE / "shell.toml"), "--set", f"environment.options.cwd={str(EXAMPLE)!r}", cwd=tmp_path
    )
    assert command.wait(timeout=400) == 0, command.output
    assert command.left_behind() == []

    run = tmp_path / "runs" / "program-shell"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["ended"], summary["steps"], summary["failed_episodes"]) == ("done", 3, {}), command.output
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["trajectories"] for step in steps] == [16, 16, 16]
    assert all(step["trained_tokens"] > 0 for step in steps)
    assert max(step["trainer"]["engine_gap_max"] for step in steps) < 1e-4

    store = SqlStore(f"sqlite:///{run / 'trajectories.db'}")
    trained = {settlement.session_id for settlement in store.settlements() if settlement.outcome == "trained"}
    trajectories = [store.get(session_id) for session_id in trained]
    store.close()
    assert len(trained) == 3 * 16
    assert {trajectory.reward for trajectory in trajectories} == {0.0, 1.0}, "some were right and some were not"
    assert any(len(trajectory.calls) > 1 and len(trajectory.rows) == 1 for trajectory in trajectories)
    assert "sk-" not in (run / "logs" / "rollout.log").read_text(), "no key is logged"

    status, output = agentrl("audit", "runs/program-shell", cwd=tmp_path)
    assert status == 0, output
    assert "clean" in output
