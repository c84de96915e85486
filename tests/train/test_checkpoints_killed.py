"""kill -9 while a checkpoint is saved, at every point at which the file system is touched."""

from __future__ import annotations

import json
import subprocess
import sys

import killed_saves
import pytest

Kills = list[tuple[str, list[str]]]  # for each point of death: what could be loaded, and what the next save left


def kills_while_saving(version: int, directory: str) -> Kills:
    command = [sys.executable, killed_saves.__file__, directory, str(version)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [(after, names) for after, names in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """Version 9 is there, 10 is saved, and one is kept."""
    return kills_while_saving(10, str(tmp_path_factory.mktemp("killed")))


def test_there_is_a_whole_checkpoint_at_every_moment(kills: Kills):
    """Case 70, with keep_last = 1: version 9 until 10 is whole, then 10; once it was there it stays."""
    outcomes = [after for after, _ in kills]
    turned = outcomes.index("v10")
    assert outcomes == ["v9"] * turned + ["v10"] * (len(outcomes) - turned)
    assert turned > 10
    assert len(outcomes) - turned > 3


def test_the_next_save_works_and_clears_the_rest_away(kills: Kills):
    assert [names for _, names in kills] == [["v11"]] * len(kills)


def test_replacing_a_version_never_loses_it(tmp_path_factory: pytest.TempPathFactory):
    kills = kills_while_saving(9, str(tmp_path_factory.mktemp("replaced")))
    assert len(kills) > 10
    assert {after for after, _ in kills} == {"v9"}
