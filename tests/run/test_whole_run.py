"""The whole stack for real: vLLM, Ray, DeepSpeed, the gateway and the store, through the command that people type."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from command import ROOT, Command, agentrl

from agentrl.store.sql import SqlStore

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

SMALL = ["--set", "loop.groups_per_step=4", "--set", "evaluation.tasks=16"]


def store_of(run: Path) -> SqlStore:
    return SqlStore(f"sqlite:///{run / 'trajectories.db'}")


def test_the_demo_learns_swaps_weights_in_flight_and_passes_its_audit(tmp_path: Path):
    """examples/01_calculator, shortened: versions mixed in flight, the audit clean, no process left."""
    command = Command(
        "train", str(ROOT / "examples/01_calculator/run.toml"), "--set", "loop.steps=6", *SMALL, cwd=tmp_path
    )
    assert command.wait(timeout=400) == 0, command.output
    assert command.left_behind() == []

    run = tmp_path / "runs" / "demo"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["ended"], summary["steps"], summary["staleness_max"]) == ("done", 6, 1)
    assert summary["trajectories"] == 6 * 4 * 8
    assert summary["multi_version_trajectories"] >= 1
    assert 0.0 <= summary["success_start"] <= 1.0
    assert 0.0 <= summary["success_end"] <= 1.0
    assert "held-out success" in command.output
    assert "moving average" in command.output
    assert "agentrl audit runs/demo" in command.output

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["evaluation", *["step"] * 6, "evaluation"]
    gaps = [line["trainer"]["engine_gap_max"] for line in lines if line["kind"] == "step"]
    assert max(gaps) < 1e-4, "where the trained weights sampled, engine and trainer agree"
    store = store_of(run)
    assert [swap.version for swap in store.swaps()] == [0, 1, 2, 3, 4, 5, 6]
    assert store.count(mode="eval") == 32
    store.close()

    status, output = agentrl("audit", "runs/demo", cwd=tmp_path)
    assert status == 0, output
    assert "clean" in output


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[int]:
    """The example's reward service on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    folder = ROOT / "examples/02_http_reward"
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "--app-dir", str(folder), "service:app", "--port", str(port)],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health").raise_for_status()
            break
        except httpx.HTTPError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield port
    process.terminate()
    process.wait(timeout=10)


def test_rewards_come_over_http_on_two_ranks_and_ctrl_c_leaves_no_process_and_a_clean_run(tmp_path: Path, judge: int):
    """examples/02_http_reward on two ZeRO-3 ranks in `keep` mode, interrupted after its second step."""
    command = Command(
        "train",
        str(ROOT / "examples/02_http_reward/run.toml"),
        *("--set", f'reward.services=[{{name="judge", url="http://127.0.0.1:{judge}"}}]'),
        *("--set", "trainer.ranks=2", "--set", "trainer.zero_stage=3", "--set", "engine.swap_mode=keep"),
        *SMALL,
        cwd=tmp_path,
    )
    command.read_until("step   2/50")
    command.signal(signal.SIGINT)
    assert command.wait(timeout=60) == 130, command.output
    assert command.left_behind() == []
    assert "interrupted after step" in command.output
    assert "Traceback" not in command.output

    run = tmp_path / "runs" / "http-reward"
    assert json.loads((run / "summary.json").read_text())["ended"] == "interrupted"
    store = store_of(run)
    trained = {s.session_id for s in store.settlements() if s.outcome == "trained"}
    assert len(trained) >= 2 * 4 * 8
    for session_id in trained:
        trajectory = store.get(session_id)
        assert trajectory.reward == trajectory.components["judge"]
        assert trajectory.components["judge.used_tool"] in (0.0, 1.0)
    store.close()
    status, output = agentrl("audit", "runs/http-reward", cwd=tmp_path)
    assert status == 0, output


def test_an_engine_that_dies_ends_the_run_with_its_name_and_no_process(tmp_path: Path):
    command = Command(
        "train",
        str(ROOT / "examples/01_calculator/run.toml"),
        *("--set", "loop.groups_per_step=4", "--set", "evaluation.at_start=false"),
        cwd=tmp_path,
    )
    command.read_until("step   1/")
    for engine in command.engines():
        engine.kill()
    assert command.wait(timeout=90) == 1, command.output
    assert "engine-0 died" in command.output
    assert "engine-0.log" in command.output
    assert "Traceback" not in command.output
    assert command.left_behind() == []
    summary = json.loads((tmp_path / "runs" / "demo" / "summary.json").read_text())
    assert (summary["ended"], "engine-0 died" in summary["error"]) == ("failed", True)


def test_a_driver_that_is_killed_outright_takes_everything_with_it(tmp_path: Path):
    """kill -9 leaves nobody to clean up: engines, actors and Ray have to notice by themselves."""
    command = Command("train", str(ROOT / "examples/01_calculator/run.toml"), cwd=tmp_path)
    command.read_until("trainer ready")
    assert command.engines(), "the engine is starting"
    started = command.processes()
    command.signal(signal.SIGKILL)
    assert command.wait(timeout=30) == -signal.SIGKILL
    _, alive = psutil.wait_procs(started, timeout=60)
    assert [process.name() for process in alive] == []
    assert command.left_behind() == []
