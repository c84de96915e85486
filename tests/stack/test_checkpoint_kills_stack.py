"""kill -9 while a real trainer saves, ten times in a row: each time the next one goes on from a whole checkpoint."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from checkpoint_kills import Life, live, unbroken
from trainer_ranks import run_ranks

from agentrl import manifest
from agentrl.train.checkpoints import Checkpoints
from agentrl.train.retention import Retention

pytestmark = pytest.mark.ranks

TRIES = 10


@pytest.fixture(scope="module")
def tries(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Life, int | None]]:
    """Each life, and the version that is latest after it: one that lives, ten that are killed at random points, one."""
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    held = Checkpoints(directory, Retention(keep_last=1))
    found = [(live(model_dir, directory, None), held.latest())]
    last = (found[0][0].touches or 0) - 1
    for point in [*random.Random(6).sample(range(last), TRIES - 1), last, None]:
        found.append((live(model_dir, directory, point), held.latest()))
        manifest.check(held.path(found[-1][1] or 0))
    return found


def test_every_kill_leaves_the_latest_checkpoint_or_the_next_whole(tries: list[tuple[Life, int | None]]) -> None:
    """Case 70, with keep_last = 1."""
    killed = tries[1:-1]
    assert [life.status for life, _ in killed] == [-signal.SIGKILL] * TRIES
    assert all(latest in (life.version, life.version + 1) for life, latest in killed)
    assert {latest == life.version for life, latest in killed} == {True, False}


def test_each_goes_on_with_the_losses_of_a_trainer_that_was_never_killed(
    tries: list[tuple[Life, int | None]], model_dir: Path
) -> None:
    last = tries[-1][0].version
    assert last >= 2
    expected = run_ranks(unbroken, 1, model_dir, last + 1, forked=True)[0]
    assert [life.loss for life, _ in tries] == [pytest.approx(expected[life.version], abs=1e-6) for life, _ in tries]
