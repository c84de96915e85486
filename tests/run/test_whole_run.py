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

from agentrl.observe.episode_time import PARTS
from agentrl.observe.spans import read_line
from agentrl.store.sql import SqlStore

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

SMALL = ["--set", "loop.groups_per_step=4", "--set", "evaluation.tasks=16"]


def store_of(run: Path) -> SqlStore:
    return SqlStore(f"sqlite:///{run / 'trajectories.db'}")


def versions_by_evaluation(store: SqlStore) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for trajectory in store.iterate(mode="eval"):
        versions = {span.version for call in trajectory.calls for span in call.versions}
        found.setdefault(trajectory.metadata["group_id"][:7], set()).update(versions)
    return found


def times_add_up(run: Path, trained: set[str]) -> None:
    """Every trained episode is in the traces, and its parts are its time."""
    lines = (run / "traces" / "spans.jsonl").read_bytes().splitlines()
    spans = [span for line in lines for span in read_line(line)]
    episodes = {
        span.attributes["gen_ai.conversation.id"]: span
        for span in spans
        if span.attributes.get("gen_ai.operation.name") == "invoke_agent"
    }
    assert trained <= set(episodes)
    for session_id in trained:
        said, span = episodes[session_id].attributes, episodes[session_id]
        spent = {part: said[f"agentrl.{part}_ns"] for part in PARTS}
        assert sum(spent.values()) == span.end - span.start + spent["reward"]
        assert spent["prefill"] > 0
        assert spent["decode"] > 0
    assert sum(episodes[session_id].attributes["agentrl.paused_ns"] for session_id in trained) > 0
    events = json.loads((run / "traces" / "trace.json").read_text())
    assert len([event for event in events if event["ph"] == "s"]) == len(trained), "an arrow for each"


def test_the_demo_learns_swaps_weights_in_flight_and_passes_its_audit(tmp_path: Path):
    """examples/01_calculator, shortened: versions mixed in flight, the audit clean, no process left; evaluated in its
    middle, and traced."""
    command = Command(
        "train",
        str(ROOT / "examples/01_calculator/run.toml"),
        *("--set", "loop.steps=6", "--set", "evaluation.every=3"),
        *SMALL,
        cwd=tmp_path,
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
    assert [line["kind"] for line in lines] == ["evaluation", *(["step"] * 3 + ["evaluation"]) * 2]
    gaps = [line["trainer"]["engine_gap_max"] for line in lines if line["kind"] == "step"]
    assert max(gaps) < 1e-4, "where the trained weights sampled, engine and trainer agree"
    store = store_of(run)
    assert [swap.version for swap in store.swaps()] == [0, 1, 2, 3, 4, 5, 6]
    assert store.count(mode="eval") == 48
    assert versions_by_evaluation(store) == {"eval-v0": {0}, "eval-v3": {3}, "eval-v6": {6}}
    times_add_up(run, {each.session_id for each in store.settlements() if each.outcome == "trained"})
    store.close()
    assert "where episodes spent their time" in agentrl("trace", "runs/demo", cwd=tmp_path)[1]

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
    assert "go on with: agentrl train --resume runs/http-reward" in command.output
    assert "Traceback" not in command.output

    run = tmp_path / "runs" / "http-reward"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["ended"] == "interrupted"
    assert (run / "checkpoints" / f"v{summary['steps']}" / "trainer").is_dir(), "what it had reached is saved"
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


@pytest.mark.slow
def test_a_run_whose_only_engine_is_killed_goes_on_with_another_and_its_books_are_right(tmp_path: Path):
    """kill -9 in the middle: it is started again, brought to the newest version, and its calls go on there."""
    command = Command(
        "train",
        str(ROOT / "examples/01_calculator/run.toml"),
        *("--set", "loop.steps=4", "--set", "loop.groups_per_step=4"),
        *("--set", "evaluation.at_start=false", "--set", "evaluation.at_end=false"),
        cwd=tmp_path,
    )
    command.read_until("step   1/")
    for engine in command.engines():
        engine.kill()
    assert command.wait(timeout=180) == 0, command.output
    assert "engine-0 is back after" in command.output
    assert command.left_behind() == []

    run = tmp_path / "runs" / "demo"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["ended"], summary["steps"]) == ("done", 4)
    [fault] = summary["faults"]
    assert (fault["part"], fault["restarts"]) == ("engine-0", 1)
    assert fault["recovered_s"] > 0
    store = store_of(run)
    swaps = [(swap.mode, swap.version) for swap in store.swaps()]
    assert [mode for mode, _ in swaps].count("boot") == 2, "the engine's second life begins with the initial weights"
    store.close()
    status, output = agentrl("audit", "runs/demo", cwd=tmp_path)
    assert status == 0, output


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
