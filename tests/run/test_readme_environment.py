"""The README's environment, as its reader would go on: checked, played by script, evaluated, trained on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command import ROOT, agentrl

from agentrl.store.sql import SqlStore

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def guess(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with guess.py and guess.toml, word for word."""
    folder = tmp_path_factory.mktemp("guess")
    readme = (ROOT / "README.md").read_text()
    for language, name in (("python", "guess.py"), ("toml", "guess.toml")):
        [block] = re.findall(rf"```{language}\n(.*?)```", readme, re.DOTALL)
        (folder / name).write_text(block)
    return folder


def test_the_check_finds_nothing(guess: Path) -> None:
    status, said = agentrl("env", "check", "guess.py:Guess", cwd=guess)
    assert status == 0, said
    assert "nothing found" in said


def test_it_is_played_by_script(guess: Path) -> None:
    """The tool's answer is the digit of the first task."""
    (guess / "ask.txt").write_text("/reveal\n")
    _, said = agentrl("env", "play", "guess.py:Guess", "--actions", "ask.txt", cwd=guess)
    [digit] = re.findall(r"^tool (\d)$", said, re.MULTILINE)
    (guess / "answer.txt").write_text(f"/reveal\n{digit}\n")
    status, said = agentrl("env", "play", "guess.py:Guess", "--actions", "answer.txt", cwd=guess)
    assert status == 0, said
    assert "reward 1.0" in said


def test_the_embedded_policy_is_evaluated_in_it(guess: Path) -> None:
    arguments = ("--checkpoint", "agentrl:tiny", "--tasks", "8", "--samples", "2", "--out", "exam")
    status, said = agentrl("eval", "guess.py:Guess", *arguments, cwd=guess, timeout=300)
    assert status == 0, said
    summary = json.loads((guess / "exam" / "summary.json").read_text())
    assert (summary["tasks"], summary["episodes"], summary["missing"]) == (8, 16, {})
    assert f"success {summary['success']['mean']:.3f}" in said
    store = SqlStore.at(guess / "exam" / "trajectories.db", create=False)
    trajectories = list(store.iterate(mode="eval"))
    store.close()
    assert len(trajectories) == 16
    for trajectory in trajectories:
        for call in trajectory.calls:
            assert call.logprobs is not None
            assert len(call.logprobs) == len(call.token_ids) > 0


def test_it_is_trained_on_for_three_steps(guess: Path) -> None:
    small = ("loop.steps=3", "loop.groups_per_step=4", "evaluation.tasks=8")
    sets = [part for setting in small for part in ("--set", setting)]
    status, said = agentrl("train", "guess.toml", *sets, cwd=guess, timeout=500)
    assert status == 0, said
    summary = json.loads((guess / "runs" / "guess" / "summary.json").read_text())
    assert (summary["ended"], summary["steps"]) == ("done", 3)
    status, said = agentrl("audit", "runs/guess", cwd=guess)
    assert status == 0, said
    assert "clean" in said
