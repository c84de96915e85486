"""A run as a picture over time, in the JSON that https://ui.perfetto.dev and chrome://tracing open.

Tracks: the trainer's steps and phases, the publisher, a lane for each episode that goes on at once with its parts in
it, and for each engine its swaps and the calls that it has. An arrow leads from an episode to the step that trained it.

Events are an array whose end may be missing, so a run that is killed leaves a file that opens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

from agentrl.observe.episode_time import nanoseconds
from agentrl.observe.lanes import Lanes
from agentrl.observe.spans import encoded, span_id
from agentrl.observe.step_trace import EvaluationTrace, StepTrace
from agentrl.observe.timed import TimedEpisode, TimedGroup
from agentrl.types import Call, SwapRecord

Event = dict[str, Any]

TRAINER, EPISODES, EVALUATIONS, ENGINES = 1, 2, 3, 10
"""Numbers of the processes that Perfetto shows; engines have some from ENGINES on."""
STEPS, PUBLISHER = 1, 2
"""Threads of the trainer's process."""
SWAPS, FIRST_LANE = 1, 2
PUBLISH = "publish"
TRAIN = "train"

HEAD, SEPARATOR = b"[\n", b",\n"
_COLOURS = {"queue": "terrible", "prefill": "good", "decode": "thread_state_running", "paused": "bad"}


def lines(events: Sequence[Event]) -> bytes:
    return b"".join(encoded(event) + SEPARATOR for event in events)


def last_line(now: int) -> bytes:
    """What makes the array whole. A run that goes on takes it back."""
    event = {"name": "end of the run", "ph": "i", "s": "g", "ts": now // 1000, "pid": TRAINER, "tid": STEPS}
    return encoded(event) + b"\n]\n"


class Picture:
    """Draws steps, groups and swaps as events, and knows which tracks there are. `run` is its name."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._names_of: dict[tuple[int, int], list[Event]] = {}  # by process and thread
        self._lanes: dict[int, Lanes] = {}

    def names(self) -> list[Event]:
        """Of all tracks so far, which a new file has to say again."""
        return [event for events in self._names_of.values() for event in events]

    def step(self, step: StepTrace, groups: Sequence[TimedGroup]) -> list[Event]:
        """The step and its groups."""
        events = self._named(TRAINER, "trainer", STEPS, "steps")
        events += self._named(TRAINER, "trainer", PUBLISHER, "publisher")
        start, end = _bounds(step)
        events.append(_slice(TRAINER, STEPS, f"step {step.step}", start, end, dict(step.numbers)))
        for phase in step.phases:
            begun, ended = nanoseconds(phase.start), nanoseconds(phase.end)
            events.append(_slice(TRAINER, STEPS, phase.name, begun, ended))
            if phase.name == PUBLISH:
                events.append(_slice(TRAINER, PUBLISHER, f"version {step.step}", begun, ended))
        trained_at = next((nanoseconds(phase.start) for phase in step.phases if phase.name == TRAIN), None)
        return [*events, *self._episodes(groups, EPISODES, "episodes", trained_at)]

    def evaluation(self, evaluation: EvaluationTrace, groups: Sequence[TimedGroup]) -> list[Event]:
        start, end = nanoseconds(evaluation.start), nanoseconds(evaluation.end)
        events = self._named(EVALUATIONS, "evaluations", STEPS, "evaluations")
        said = {"outcome": evaluation.outcome}
        events.append(_slice(EVALUATIONS, STEPS, f"version {evaluation.version}", start, end, said))
        return [*events, *self._episodes(groups, EVALUATIONS, "evaluations", None)]

    def swaps(self, swaps: Sequence[SwapRecord]) -> list[Event]:
        events: list[Event] = []
        for swap in swaps:
            engine = _engine(swap.engine_id)
            start, end = nanoseconds(swap.started_at), nanoseconds(swap.finished_at)
            name = f"start at version {swap.version}" if swap.mode == "boot" else f"to version {swap.version}"
            events += self._named(engine, swap.engine_id, SWAPS, "weights")
            events.append(_slice(engine, SWAPS, name, start, end, {"mode": swap.mode}))
        return events

    def _episodes(
        self, groups: Sequence[TimedGroup], process: int, what: str, trained_at: int | None
    ) -> Iterator[Event]:
        """In order of their starts, and their calls after them."""
        episodes = [(group, episode) for group in groups for episode in group.episodes]
        for group, episode in sorted(episodes, key=lambda each: each[1].start):
            end = max(episode.end, episode.slices[-1].end if episode.slices else episode.end)
            thread = self._lane(process, episode.start, end)
            yield from self._named(process, what, thread, f"lane {thread - FIRST_LANE + 1}")
            yield _slice(process, thread, _title(group, episode), episode.start, episode.end, _facts(group, episode))
            for each in episode.slices:
                event = _slice(process, thread, each.part, each.start, each.end)
                yield event | ({"cname": _COLOURS[each.part]} if each.part in _COLOURS else {})
            if trained_at is not None and episode.trace.outcome == "trained" and episode.slices:
                arrow = {"cat": "trained", "name": "trained", "id": "0x" + span_id(self._run, *_key(episode))}
                inside = max(episode.slices[-1].start // 1000, end // 1000 - 1)
                yield {"ph": "s", "ts": inside, "pid": process, "tid": thread, **arrow}
                yield {"ph": "f", "bp": "e", "ts": trained_at // 1000, "pid": TRAINER, "tid": STEPS, **arrow}
        calls = [(episode, call) for _, episode in episodes for call in episode.trace.trajectory.calls]
        for episode, call in sorted(calls, key=lambda each: _at_engine(each[1])):
            yield from self._call(episode, call)

    def _call(self, episode: TimedEpisode, call: Call) -> Iterator[Event]:
        """On the engine that ended it, from when that had it."""
        start, end = _at_engine(call), nanoseconds(call.ended_at)
        if end <= start or not call.engine_id:
            return
        engine = _engine(call.engine_id)
        thread = self._lane(engine, start, end)
        yield from self._named(engine, call.engine_id, thread, f"calls {thread - FIRST_LANE + 1}")
        facts = {
            "session": episode.trace.trajectory.session_id,
            "call": call.call_id,
            "prompt_tokens": len(call.prompt_token_ids),
            "sampled_tokens": len(call.token_ids),
            "versions": [span.version for span in call.versions],
        }
        yield _slice(engine, thread, f"{len(call.token_ids)} tokens", start, end, facts)

    def _lane(self, process: int, start: int, end: int) -> int:
        return FIRST_LANE + self._lanes.setdefault(process, Lanes()).place(start, end)

    def _named(self, process: int, process_name: str, thread: int, thread_name: str) -> list[Event]:
        """What a track is called, once; tracks of a process stand in the order of their numbers."""
        new: list[Event] = []
        if (process, 0) not in self._names_of:
            new += self._names_of.setdefault(
                (process, 0),
                [
                    _name("process_name", process, 0, name=process_name),
                    _name("process_sort_index", process, 0, sort_index=_order(process, process_name)),
                ],
            )
        if (process, thread) not in self._names_of:
            new += self._names_of.setdefault(
                (process, thread),
                [
                    _name("thread_name", process, thread, name=thread_name),
                    _name("thread_sort_index", process, thread, sort_index=thread),
                ],
            )
        return new


def _engine(engine_id: str) -> int:
    """The process that an engine is drawn as: the same whenever the run goes on."""
    return ENGINES + crc32(engine_id.encode(errors="replace"))


def _order(process: int, name: str) -> int:
    """Engines by the number in their name, after all others."""
    number = re.search(r"\d+$", name)
    return process if process < ENGINES else ENGINES + int(number[0] if number else 0)


def _at_engine(call: Call) -> int:
    """When the engine that ended it had it."""
    last = call.moments[(len(call.moments) - 1) // 3 * 3] if call.moments else 0
    return nanoseconds(call.started_at) + 1000 * last


def _bounds(step: StepTrace) -> tuple[int, int]:
    starts = [nanoseconds(phase.start) for phase in step.phases]
    ends = [nanoseconds(phase.end) for phase in step.phases]
    return min(starts, default=0), max(ends, default=0)


def _title(group: TimedGroup, episode: TimedEpisode) -> str:
    return f"{group.trace.group_id} {episode.trace.trajectory.metadata.get('index', '')}".rstrip()


def _key(episode: TimedEpisode) -> tuple[str, str]:
    return "episode", episode.trace.trajectory.session_id


def _facts(group: TimedGroup, episode: TimedEpisode) -> dict[str, Any]:
    trajectory = episode.trace.trajectory
    return {
        "session": trajectory.session_id,
        "task": group.trace.task.id,
        "outcome": episode.trace.outcome,
        "stop_reason": trajectory.stop_reason,
        "reward": trajectory.reward,
        "trained_tokens": episode.trace.trained_tokens,
        "max_lag": episode.trace.max_lag,
    }


def _slice(process: int, thread: int, name: str, start: int, end: int, args: dict[str, Any] | None = None) -> Event:
    """Times are cut to whole microseconds, all alike, so that what lies in something still does."""
    begun = start // 1000
    event = {"ph": "X", "name": name, "ts": begun, "dur": max(0, end // 1000 - begun), "pid": process, "tid": thread}
    return event | ({"args": args} if args else {})


def _name(what: str, process: int, thread: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}
