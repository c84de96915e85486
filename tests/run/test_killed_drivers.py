"""kill -9 at twenty random moments: whoever goes on trains each task once, and makes each version again bit for bit.

Case 68. Drivers of seconds over a scripted engine (`light_driver`). `tools/driver_kills.py` does the same with the
whole stack.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from command import agentrl

from agentrl.observe.history import read_history
from agentrl.rundir import RunDirectory
from agentrl.store.sql import SqlStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS, STEPS, GROUPS_PER_STEP, SEED, LATEST_S = 20, 120, 3, 0, 4.0
TESTS = Path(__file__).parents[1]


def start(root: Path) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("light_driver.py")
    return subprocess.Popen(
        [sys.executable, str(program), str(root), str(STEPS), str(GROUPS_PER_STEP)],
        env={**os.environ, "PYTHONPATH": f"{TESTS / 'rollout'}:{TESTS / 'train'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_twenty_drivers_are_killed_and_the_books_are_those_of_one_run(tmp_path: Path):
    chance, directory, killed = random.Random(SEED), RunDirectory(tmp_path / "run"), 0
    while True:
        driver = start(directory.root)
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n", driver.communicate()[1]
        if killed == KILLS:
            break
        try:
            driver.wait(chance.uniform(0.0, LATEST_S))
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
            killed += 1
        else:
            break
    errors = driver.communicate(timeout=600)[1]
    assert driver.returncode == 0, errors
    report(directory)
    assert killed == KILLS

    store = SqlStore.at(directory.store, create=False)
    groups, swaps = list(store.groups()), store.swaps()
    settled = Counter(settlement.session_id for settlement in store.settlements())
    sampled = {trajectory.session_id for trajectory in store.iterate(mode="train")}
    left_open = [session_id for session_id, _ in store.journal("gateway")]
    store.close()
    assert [group.group_id for group in groups if group.outcome is None] == []
    assert [int(group.group_id.partition("-")[0]) for group in groups] == list(range(len(groups))), "none drawn twice"
    assert len({group.task.id for group in groups}) == len(groups), "no task twice"
    assert set(Counter(group.step for group in groups if group.outcome == "trained").values()) == {GROUPS_PER_STEP}
    assert (set(settled), set(settled.values())) == (sampled, {1}), "each trajectory is settled once"
    assert left_open == []
    made: dict[int, set[str]] = {}
    for swap in swaps:
        made.setdefault(swap.version, set()).add(swap.digest)
    assert sorted(made) == list(range(STEPS + 1))
    assert [version for version, digests in made.items() if len(digests) > 1] == [], "a version has one meaning"
    history = read_history(directory.metrics)
    assert [record.step for record in history.steps] == list(range(1, STEPS + 1))

    status, output = agentrl("audit", str(directory.root), "--no-weights", cwd=tmp_path)
    assert status == 0, output
    assert "clean" in output


def report(directory: RunDirectory) -> None:
    """For the page on resuming."""
    history = read_history(directory.metrics)
    resumes = history.resumes
    print(
        f"\n{KILLS} kills, {len(resumes)} drivers that lived to go on: "
        f"{sum(record.replayed for record in resumes)} batches trained again (at most "
        f"{max((record.replayed for record in resumes), default=0)} at once), "
        f"{sum(record.adopted_groups for record in resumes)} groups taken up, "
        f"{sum(record.sealed_sessions for record in resumes)} broken sessions with "
        f"{sum(record.sealed_tokens for record in resumes)} tokens ended; {len(history.steps)} steps"
    )
