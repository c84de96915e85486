"""Reward services that a run starts itself, for real: one scores, one judges through the run's own gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command, agentrl

from agentrl.store.sql import SqlStore
from agentrl_envs.calculator.tasks import problem

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(600)]

STEPS, GROUPS, SIZE = 3, 2, 4

RUN = f"""
name = "judged"
model = "agentrl:tiny"

[environment]
id = "agentrl/Calculator-v0"
train_tasks = "sums.jsonl"

[loop]
steps = {STEPS}
groups_per_step = {GROUPS}

[rollout]
group_size = {SIZE}

[evaluation]
tasks = 0

[engine]  # in a verdict the tiny policy would write line breaks for ever
extra_args = ["--structured-outputs-config", '{{"backend": "xgrammar", "disable_any_whitespace": true}}']

[[reward.services]]
name = "right"
start = "math"
weight = 0.5
options = {{ label = "answer", workers = 1 }}

[[reward.services]]
name = "judge"
start = "judge"
weight = 0.25
timeout_s = 120.0
options = {{ max_tokens = 48, rubric = "rubric.txt", votes = 2, reason_chars = 0 }}
"""


def test_a_run_is_judged_by_its_own_policy_without_training_on_what_the_judge_said(tmp_path: Path):
    """The tiny policy knows nothing of judging, but by its schema each vote is a verdict, and all rewards are had."""
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "rubric.txt").write_text("Is the last number right?\n")
    sums = [{"id": f"sum{seed}", "seed": seed, "answer": problem(seed).answer} for seed in range(40)]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in sums))
    command = Command("train", "run.toml", cwd=tmp_path)
    assert command.wait(timeout=400) == 0, command.output
    assert command.left_behind() == []

    run = tmp_path / "runs" / "judged"
    store = SqlStore(f"sqlite:///{run / 'trajectories.db'}")
    episodes = {found.session_id: found for found in store.iterate(mode="train")}
    questions = list(store.iterate(mode="eval"))
    settled = {settlement.session_id: settlement for settlement in store.settlements()}
    store.close()
    trained = [episodes[session_id] for session_id, one in settled.items() if one.outcome == "trained"]
    assert len(trained) == STEPS * GROUPS * SIZE
    for episode in trained:
        env, right = episode.components["env"], episode.components["right"]
        assert env is not None
        assert right is not None
        judged, votes = episode.components["judge"], episode.components["judge.votes"]
        assert judged is not None
        assert 0 <= judged <= 1
        assert votes == 2
        assert episode.reward == pytest.approx(env + 0.5 * right + 0.25 * judged, abs=1e-12)
        assert right >= env, "what the environment takes is mathematically right"
    assert {episode.components["right"] for episode in trained} == {0.0, 1.0}

    assert {question.metadata.get("purpose") for question in questions} == {"judge"}
    assert len(questions) >= 2 * len(trained)
    assert len({episode.components["judge"] for episode in trained}) > 1, "they differ"
    verdicts = [json.loads(call.message["content"]) for question in questions for call in question.calls]
    assert all(set(verdict) == {"score"} for verdict in verdicts)
    assert len(verdicts) >= 2 * len(trained)
    assert settled.keys().isdisjoint(question.session_id for question in questions)
    assert settled.keys() <= episodes.keys()

    parts = json.loads((run / "summary.json").read_text())["reward_parts"]
    assert (parts["right"]["failures"], parts["right"]["outage_s"]) == (0.0, 0.0)
    assert parts["right"]["items"] >= len(trained)
    assert (parts["judge"]["failures"], parts["judge"]["requests"] >= 1) == (0.0, True)
    assert "Traceback" not in (run / "logs" / "reward-judge.log").read_text()
    status, output = agentrl("audit", "runs/judged", cwd=tmp_path)
    assert status == 0, output
    assert "clean" in output
