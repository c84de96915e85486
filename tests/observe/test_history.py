"""A run that goes on begins its metrics where the last whole line ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.observe.files import JsonLines
from agentrl.observe.history import read_history
from agentrl.observe.recorder import Recorder
from agentrl.observe.records import EvalRecord, ResumeRecord, StepRecord


def step(number: int) -> StepRecord:
    return StepRecord(
        step=number, reward=0.5, success=0.5, trajectories=4, missing_rewards=0, multi_version_trajectories=0,
        no_signal_groups=0, rows=4, trained_tokens=12, sampled_tokens=12, staleness={0: 8, 1: 4}, dropped_tokens={},
        dropped_groups={}, groups_under_way=1, phases={"train": 1.0}, swap={}, trainer={"loss": 0.1},
    )  # fmt: skip


def begun(path: Path) -> Recorder:
    return Recorder([JsonLines(path)], read_history(path))


def test_records_go_on_in_number_in_time_and_in_the_summary(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    first = begun(path)
    first.evaluated(EvalRecord(version=0, tasks=4, missing=0, success=0.25, reward=0.25))
    first._started -= 100.0
    first.stepped(step(1))
    first.close()
    second = begun(path)
    second.resumed(
        ResumeRecord(version=1, checkpoint=None, replayed=1, adopted_groups=2, sealed_sessions=3, sealed_tokens=40)
    )
    second.stepped(step(2))
    second.close()
    history = read_history(path)
    assert [record.step for record in history.steps] == [1, 2]
    assert history.steps[0].staleness == {0: 8, 1: 4}
    assert history.steps[1].elapsed_s >= history.steps[0].elapsed_s >= 100.0
    assert history.steps[1].training_s >= history.steps[0].training_s
    assert [record.sealed_tokens for record in history.resumes] == [40]
    summary = second.summary(ended="done")
    assert (summary.steps, summary.trajectories, summary.success_start, summary.resumes) == (2, 8, 0.25, 1)
    assert summary.wall_s >= 100.0


def test_half_a_line_is_cut_off(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    recorder = begun(path)
    recorder.stepped(step(1))
    recorder.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"step","st')
    assert [record.step for record in read_history(path).steps] == [1]
    assert path.read_bytes() == whole


def test_a_damaged_line_is_named(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind":"step","step":1}\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl, line 1 cannot be read"):
        read_history(path)


def test_there_is_no_history_before_the_first_line(tmp_path: Path):
    assert read_history(tmp_path / "metrics.jsonl").steps == []
