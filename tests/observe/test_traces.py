"""What a run leaves in `traces/`: standard records that join by their ids, a picture that opens, both in bounds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_traces import S, a_group, a_step, an_episode, whole_step, whole_swaps

from agentrl.observe import bounded_file
from agentrl.observe.bounded_file import BoundedFile
from agentrl.observe.config import TracesConfig
from agentrl.observe.lanes import Lanes
from agentrl.observe.spans import ReadSpan, read_line
from agentrl.observe.step_trace import EvaluationTrace, StepTrace
from agentrl.observe.traces import SPANS, TRACE, WAITING, TraceWriter
from agentrl.types import SwapRecord


def written(
    directory: Path,
    *items: StepTrace | EvaluationTrace,
    swaps: Callable[[int], Sequence[SwapRecord]] = whole_swaps,
    **config: Any,
) -> dict[str, int]:
    writer = TraceWriter(directory, TracesConfig(**config), run="demo", swaps=swaps)
    for item in items:
        writer.stepped(item) if isinstance(item, StepTrace) else writer.evaluated(item)
    writer.close()
    return writer.counts


def spans_in(directory: Path) -> list[ReadSpan]:
    return [span for line in (directory / SPANS).read_bytes().splitlines() for span in read_line(line)]


def opened(path: Path) -> list[dict[str, Any]]:
    """As a viewer does: the end of the array may be missing."""
    text = path.read_text()
    try:
        return list(json.loads(text))
    except json.JSONDecodeError:
        return list(json.loads(text.rstrip().removesuffix(",") + "]"))


def test_a_step_its_groups_episodes_and_calls_join_by_their_ids(tmp_path: Path):
    assert written(tmp_path, whole_step()) == {"written": 1, "left_out": 0, "failed": 0}
    spans = {span.name: span for span in spans_in(tmp_path)}
    step, group = spans["step"], spans["group"]
    episode, call = spans["invoke_agent calculator"], spans["chat policy"]
    assert step.links == [group.ref]
    assert [spans[name].parent_id for name in ("wait", "train", "publish")] == [step.ref.span_id] * 3
    assert (episode.parent_id, spans["reward"].parent_id) == (group.ref.span_id, group.ref.span_id)
    assert call.parent_id == episode.ref.span_id
    assert group.ref.trace_id == episode.ref.trace_id == call.ref.trace_id != step.ref.trace_id
    assert len({span.ref for span in spans.values()}) == len(spans) == 8
    assert (group.attributes["agentrl.step"], episode.attributes["gen_ai.conversation.id"]) == (5, "s0")
    assert (call.attributes["gen_ai.response.id"], call.attributes["gen_ai.usage.output_tokens"]) == ("c0", 3)


def test_an_episodes_span_says_its_time_by_parts_and_its_groups_how_long_it_was_ready(tmp_path: Path):
    written(tmp_path, whole_step())
    spans = {span.name: span for span in spans_in(tmp_path)}
    episode = spans["invoke_agent calculator"]
    spent = {name: episode.attributes[f"agentrl.{name}_ns"] // S for name in ("queue", "prefill", "decode")}
    others = {name: episode.attributes[f"agentrl.{name}_ns"] // S for name in ("tool", "reward", "paused")}
    assert spent | others == {"queue": 2, "prefill": 2, "decode": 3, "tool": 2, "reward": 2, "paused": 1}
    assert episode.end - episode.start + 2 * S == sum(spent.values()) * S + sum(others.values()) * S
    assert spans["group"].attributes["agentrl.ready_ns"] == (22 - 12) * S
    assert spans["chat policy"].attributes["agentrl.paused_ns"] == S


def test_lines_are_otlp_json_as_the_collector_reads_it(tmp_path: Path):
    """Ids in hexadecimal, 64-bit numbers as strings, no key for what is missing."""
    lost = an_episode("s1", 1, 2, outcome="retried", reward=None)
    written(tmp_path, a_step(1, [a_group("g", [lost])]))
    line = json.loads((tmp_path / SPANS).read_bytes().splitlines()[1])
    [of_run] = line["resourceSpans"]
    assert {"key": "service.instance.id", "value": {"stringValue": "demo"}} in of_run["resource"]["attributes"]
    group, episode, _reward = of_run["scopeSpans"][0]["spans"]
    assert (len(group["traceId"]), len(group["spanId"]), "parentSpanId" in group) == (32, 16, False)
    assert (episode["startTimeUnixNano"], episode["kind"]) == ("0", 1)
    values = {each["key"]: each["value"] for each in episode["attributes"]}
    assert values["agentrl.queue_ns"] == {"intValue": str(S)}
    assert "agentrl.reward" not in values
    assert values["agentrl.reward_ns"] == {"intValue": "0"}, "what a failure ended is not scored"


def test_the_picture_has_the_parts_inside_the_episode_and_an_arrow_to_the_step_that_trained_it(tmp_path: Path):
    written(tmp_path, whole_step())
    events = json.loads((tmp_path / TRACE).read_text())
    slices = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X"}
    assert slices["g0 0"] == (0, 10_000_000)
    assert slices["step 5"] == (20_000_000, 26_000_000)
    assert slices["3 tokens"] == (2_000_000, 8_000_000), "an engine has a call from when that got it"
    assert slices["to version 4"] == (5_000_000, 6_000_000)
    parts = [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 2 and "args" not in event]
    assert parts == ["queue", "prefill", "decode", "paused", "decode", "tool", "reward"]
    [begin] = [event for event in events if event["ph"] == "s"]
    [end] = [event for event in events if event["ph"] == "f"]
    assert (begin["id"], end["bp"], end["ts"]) == (end["id"], "e", 22_000_000)
    assert 10_000_000 <= begin["ts"] < 12_000_000, "inside its last slice"
    names = {event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name")}
    assert {"trainer", "steps", "publisher", "episodes", "lane 1", "engine-0", "weights", "calls 1"} <= names


def test_a_run_that_is_killed_leaves_files_that_open_and_one_that_goes_on_appends_to_them(tmp_path: Path):
    written(tmp_path, whole_step(1))
    for name, torn in ((SPANS, b'{"resourceSp'), (TRACE, b'{"ph": "X", "na')):
        path = tmp_path / name
        end = path.read_bytes().rfind(b",\n") + 2 if name == TRACE else None
        path.write_bytes(path.read_bytes()[:end])
        if name == TRACE:
            assert len(opened(path)) > 10
        path.write_bytes(path.read_bytes() + torn)
    written(tmp_path, whole_step(2))
    assert [span.attributes["agentrl.step"] for span in spans_in(tmp_path) if span.name == "step"] == [1, 2]
    steps = [event["name"] for event in json.loads((tmp_path / TRACE).read_text()) if event["name"].startswith("step ")]
    assert steps == ["step 1", "step 2"]


def test_only_each_so_many_steps_are_written_and_all_evaluations(tmp_path: Path):
    exam = EvaluationTrace(version=3, start=1, end=2, outcome="done", groups=[])
    steps = [a_step(number, []) for number in range(1, 7)]
    assert written(tmp_path, *steps, exam, every=3) == {"written": 3, "left_out": 4, "failed": 0}
    assert [span.attributes.get("agentrl.step") for span in spans_in(tmp_path) if span.name == "step"] == [3, 6]
    assert [span.attributes["agentrl.version"] for span in spans_in(tmp_path) if span.name == "evaluation"] == [3]


def test_the_files_stay_in_their_bounds_and_keep_what_is_newest(tmp_path: Path):
    """A mebibyte in all: a quarter for each file and for the one before it."""
    steps = [a_step(n, [a_group(f"g{n}", [an_episode(f"s{n}-{i}", 1, 10) for i in range(100)])]) for n in range(1, 31)]
    for step in steps:  # one at a time: more than eight may not wait
        assert written(tmp_path, step, max_mb=1)["written"] == 1
    names = {SPANS, TRACE, f"{SPANS}.1", f"{TRACE}.1"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2**20 + 2 * 200, "and the last lines of the array"
    assert [span.attributes["agentrl.step"] for span in spans_in(tmp_path) if span.name == "step"][-1] == 30
    events = opened(tmp_path / TRACE)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} <= named
    assert opened(tmp_path / f"{TRACE}.1")


def test_a_full_disk_is_counted_and_the_files_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is full in the middle of the second step, and has room again for the third."""
    write, left = bounded_file.os.write, [10**6]

    def limited(file: int, data: Any) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        done = write(file, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(bounded_file.os, "write", limited)
    writer = TraceWriter(tmp_path, TracesConfig(), run="demo", swaps=whole_swaps)
    for number, room in ((1, 10**6), (2, 100), (3, 10**6)):
        left[0] = room
        before = sum(writer.counts.values())
        writer.stepped(whole_step(number))
        while sum(writer.counts.values()) == before:
            threading.Event().wait(0.001)
    writer.close()
    assert writer.counts == {"written": 2, "left_out": 0, "failed": 1}
    assert [span.attributes["agentrl.step"] for span in spans_in(tmp_path) if span.name == "step"] == [1, 3]
    assert json.loads((tmp_path / TRACE).read_text())


def test_a_store_that_does_not_answer_costs_the_run_nothing(tmp_path: Path):
    """The writer is stuck: steps are left out, and nobody waits."""
    stuck, started = threading.Event(), threading.Event()

    def swaps(skip: int) -> list[SwapRecord]:
        started.set()
        stuck.wait(30)
        return []

    writer = TraceWriter(tmp_path, TracesConfig(), run="demo", swaps=swaps)
    writer.stepped(a_step(0, []))
    assert started.wait(30)
    for number in range(1, WAITING + 4):
        writer.stepped(a_step(number, []))
    assert writer.counts["left_out"] == 3
    stuck.set()
    writer.close()
    assert writer.counts == {"written": WAITING + 1, "left_out": 3, "failed": 0}


def test_text_that_json_cannot_have_is_no_failure(tmp_path: Path):
    step = a_step(1, [a_group("g\ud800", [an_episode("s", 1, 2)])])
    assert written(tmp_path, step)["failed"] == 0
    assert "g?" in {span.attributes.get("agentrl.group.id") for span in spans_in(tmp_path)}


def test_a_record_that_no_file_may_hold_is_refused_and_the_file_left_alone(tmp_path: Path):
    file = BoundedFile(tmp_path / "f", max_bytes=10)
    assert file.append(b"one\n")
    assert not file.append(b"far too long\n")
    assert file.append(b"two\n")
    assert file.append(b"three\n")
    file.close()
    assert ((tmp_path / "f").read_bytes(), file.older.read_bytes()) == (b"three\n", b"one\ntwo\n")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=60))
def test_what_overlaps_is_in_different_lanes(intervals: list[tuple[int, int]]):
    lanes, placed = Lanes(), [(lane, start, end) for lane, start, end in ()]
    for start, length in intervals:
        placed.append((lanes.place(start, start + length), start, start + length))
    for index, (lane, start, end) in enumerate(placed):
        for other, begun, ended in placed[:index]:
            assert lane != other or end <= begun or ended <= start
