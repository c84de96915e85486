"""What a run says of itself agrees with what happened."""

import io
import json
from pathlib import Path

import pytest
from record_builders import evaluation, step
from rich.console import Console

from agentrl.observe.display import LineDisplay, LiveDisplay, sparkline
from agentrl.observe.files import JsonLines
from agentrl.observe.recorder import Recorder
from agentrl.observe.summary import curve, print_summary, write_summary


def test_the_summary_adds_up_the_steps_and_names_every_reason():
    recorder = Recorder([])
    recorder.evaluated(evaluation(0, 0.4))
    for number in (1, 2):
        recorder.stepped(step(number))
    recorder.evaluated(evaluation(2, 0.9))
    recorder.dropped_groups = {"stale": 2}
    summary = recorder.summary(ended="done")
    assert (summary.success_start, summary.success_end, summary.steps) == (0.4, 0.9, 2)
    assert (summary.trajectories, summary.multi_version_trajectories, summary.staleness_max) == (128, 6, 1)
    # Tokens add up over steps; the count of groups is already a running total.
    assert summary.dropped == {"tokens.stale": 200, "groups.stale": 2}


def test_a_run_that_never_got_to_the_end_has_no_success_there():
    recorder = Recorder([])
    recorder.evaluated(evaluation(0, 0.4))
    summary = recorder.summary(ended="failed", error="the engine died")
    assert (summary.success_end, summary.steps, summary.error) == (None, 0, "the engine died")


def test_the_moving_average_covers_the_last_ten_steps():
    recorder = Recorder([])
    for number in range(1, 13):
        recorder.stepped(step(number, success=0.0 if number <= 2 else 1.0))
    assert [record.success_average for record in recorder.steps][1:4] == pytest.approx([0.0, 1 / 3, 0.5])
    assert recorder.steps[-1].success_average == 1.0


def test_metrics_are_one_json_object_a_line(tmp_path: Path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.stepped(step(1))
    sink.evaluated(evaluation(1, 0.7))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    sink.close()
    assert [line["kind"] for line in lines] == ["step", "evaluation"]
    assert lines[0]["staleness"] == {"0": 1500, "1": 500}
    assert lines[0]["trainer"]["loss"] == 0.25


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_says_step_of_steps_success_lag_and_phases(terminal: bool):
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=terminal)
    display = LiveDisplay(console, steps=40, name="demo") if terminal else LineDisplay(console, steps=40)
    display.say("starting the engine")
    for done in range(1, 9):
        display.progress("evaluating version 0", done, 8)
    display.stepped(step(3, success=0.625, success_average=0.6, step_s=2.0, training_s=6.0))
    display.evaluated(evaluation(3, 0.875))
    display.close()
    text = out.getvalue()
    for part in ("starting the engine", "3/40", "0.62", "train 2.0", "1,050", "held-out success 0.875 on 256 tasks"):
        assert part in text
    if not terminal:
        assert "evaluating version 0: 8 of 8" in text
        assert "left 1m14s" in text, "37 steps at the 2 seconds of the first three"
        assert text.count("evaluating version 0") == 4, "a line at each quarter"


def test_a_sparkline_shows_the_ends_of_the_scale():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0] * 3 + [1.0], width=2) == "▁█"


def test_the_end_of_a_run_shows_the_curve_the_gain_and_what_to_type_next(tmp_path: Path):
    recorder = Recorder([])
    recorder.evaluated(evaluation(0, 0.4))
    for number in range(1, 6):
        recorder.stepped(step(number, success=number / 10))
    recorder.evaluated(evaluation(5, 0.9))
    out = io.StringIO()
    summary = recorder.summary(ended="done")
    print_summary(Console(file=out, width=100), summary, recorder.steps, tmp_path)
    assert "moving average" in out.getvalue()
    assert "held-out success 0.400 → 0.900" in out.getvalue()
    assert f"agentrl audit {tmp_path}" in out.getvalue()
    assert "\x1b" not in curve(recorder.steps), "a curve in a log holds no terminal codes"
    write_summary(tmp_path / "summary.json", summary)
    assert json.loads((tmp_path / "summary.json").read_text())["success_end"] == 0.9
