"""`agentrl trace` says where the time went, from the files alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from step_traces import a_call, a_group, a_step, an_episode, whole_swaps
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import ConfigError
from agentrl.observe.config import TracesConfig
from agentrl.observe.step_trace import StepTrace
from agentrl.observe.trace_report import quantile, read_report
from agentrl.observe.traces import SPANS, TraceWriter
from agentrl.rundir import RunDirectory


def a_traced_run(path: Path, *steps: StepTrace) -> Path:
    directory = RunDirectory(path)
    directory.traces.mkdir(parents=True)
    writer = TraceWriter(directory.traces, TracesConfig(), run="demo", swaps=whole_swaps)
    for step in steps:
        writer.stepped(step)
    writer.close()
    return path


def two_steps() -> list[StepTrace]:
    """Nine quick episodes of 4 s, half of it decoding, and one of 40 s that waits for its tool; ready 8 s."""
    quick = [an_episode(f"q{i}", 0, 4, [a_call(f"c{i}", 0, 2, [0, 0])]) for i in range(9)]
    slow = an_episode("slow", 0, 40)
    return [
        a_step(1, [a_group("g0", quick, played_at=4, scored_at=4)], at=10),
        a_step(2, [a_group("g1", [slow], played_at=40, scored_at=40)], at=46),
    ]


def test_episodes_are_split_by_how_long_they_took_and_steps_by_their_phases(tmp_path: Path):
    report = read_report(a_traced_run(tmp_path / "run", *two_steps()) / "traces")
    everyone, half, middle, slowest = report.splits()
    assert (everyone.episodes, half.episodes, middle.episodes, slowest.episodes) == (10, 5, 4, 1)
    assert (half.median, half.shares["decode"], half.shares["tool"]) == (4.0, 0.5, 0.5)
    assert (slowest.median, slowest.shares["tool"]) == (40.0, 1.0)
    assert everyone.shares["decode"] == pytest.approx(18 / 76)
    assert sum(everyone.shares.values()) == pytest.approx(1.0)
    assert (report.steps, report.step_seconds) == (2, 12.0)
    assert report.phases == {"wait": 4.0, "train": 6.0, "publish": 2.0}
    assert report.ready == [8.0, 8.0]


def test_the_command_prints_it(tmp_path: Path):
    run = a_traced_run(tmp_path / "run", *two_steps())
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["trace", str(run)])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["slowest", "tenth", "1", "40.00", "0.0%", "0.0%", "0.0%", "100.0%", "0.0%", "0.0%"] in lines
    assert ["train", "3.00", "50.0%"] in lines
    assert "the trainer waited for episodes 33% of its time (4.0 s)" in result.output
    assert "finished groups waited for the trainer 8.0 s" in result.output


def test_a_torn_line_is_left_out_and_counted(tmp_path: Path):
    run = a_traced_run(tmp_path / "run", *two_steps())
    path = run / "traces" / SPANS
    path.write_bytes(path.read_bytes()[:-20])
    report = read_report(run / "traces")
    assert (report.unreadable, report.steps, len(report.episodes)) == (1, 2, 9)


def test_a_run_without_traces_says_so(tmp_path: Path):
    result = CliRunner().invoke(app, ["trace", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "has no traces" in str(result.exception)


def test_quantiles_are_values_that_occurred():
    assert [quantile([4.0, 1.0, 3.0, 2.0], share) for share in (0.0, 0.5, 0.9, 1.0)] == [1.0, 3.0, 4.0, 4.0]
    assert quantile([], 0.5) == 0.0
