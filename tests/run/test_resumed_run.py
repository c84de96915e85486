"""The whole stack, killed: a trainer rank in the middle of a run, then the driver; and the run goes on to its end."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import ROOT, Command, agentrl

from agentrl.store.sql import SqlStore

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = [
    *("--set", "loop.steps=8", "--set", "loop.groups_per_step=2", "--set", "rollout.group_size=4"),
    *("--set", "evaluation.tasks=8", "--set", "checkpoint.every=3"),
]


def first_sampled_under_the_version_it_goes_on_at(store: SqlStore, resume: dict[str, Any]) -> None:
    """Case 71: the new engine boots with the first weights, gets that version next, and samples nothing before."""
    swaps = store.swaps()
    (boot,) = (at for at, swap in enumerate(swaps) if at and swap.mode == "boot")
    assert swaps[boot + 1].version == resume["version"] > 0
    calls = [call for trajectory in store.iterate() for call in trajectory.calls]
    after = [call for call in calls if call.started_at >= swaps[boot].finished_at]
    assert min(span.version for call in after for span in call.versions) == resume["version"]


def test_a_run_survives_its_trainer_and_goes_on_after_its_driver(tmp_path: Path):
    command = Command("train", str(ROOT / "examples/01_calculator/run.toml"), *SMALL, cwd=tmp_path)
    command.read_until("step   2/8")
    [rank] = [process for process in command.processes() if "ray::TrainerActor" in " ".join(process.cmdline())]
    rank.kill()
    command.read_until("trainer rank 0 died")
    assert "trained again up to here after" in command.output.splitlines()[-1]
    command.read_until("step   4/8")
    started = command.processes()
    command.signal(signal.SIGKILL)
    assert command.wait(timeout=30) == -signal.SIGKILL

    status, output = agentrl("train", "--resume", "demo", cwd=tmp_path, timeout=400)
    assert status == 0, output
    assert "goes on at version" in output
    _, alive = psutil.wait_procs(started, timeout=0)
    assert [process.name() for process in alive] == [], "the second driver began when nothing of the first was left"

    run = tmp_path / "runs" / "demo"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, 9))
    assert [line["version"] for line in lines if line["kind"] == "evaluation"] == [0, 8]
    assert [line["checkpoint"] for line in lines if line["kind"] == "resume"] == [3]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["ended"], summary["steps"], summary["resumes"]) == ("done", 8, 1)
    gaps = [line["trainer"]["engine_gap_max"] for line in lines if line["kind"] == "step"]
    assert max(gaps) < 1e-4, "where the trained weights sampled, engine and trainer agree"
    store = SqlStore.at(run / "trajectories.db", create=False)
    first_sampled_under_the_version_it_goes_on_at(store, next(line for line in lines if line["kind"] == "resume"))
    groups = list(store.groups())
    assert [group.group_id for group in groups if group.outcome is None] == []
    assert [int(group.group_id.partition("-")[0]) for group in groups] == list(range(len(groups)))
    store.close()
    assert sorted(path.name for path in (run / "batches").iterdir()) == []

    status, output = agentrl("audit", "runs/demo", cwd=tmp_path)
    assert status == 0, output
    status, output = agentrl("train", "--resume", "demo", cwd=tmp_path)
    assert (status, "is done: 8 of 8 steps" in output) == (2, True)
