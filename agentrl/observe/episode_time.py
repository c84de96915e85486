"""Where an episode's time went. Pure, in whole nanoseconds, so that the parts add up exactly.

An episode's time is from its admission to its end, and that of its reward. At every instant it is in one part: the
furthest that any of its calls is (`_AHEAD`), or with the environment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from agentrl.types import Call, SwapRecord

Part = Literal["queue", "prefill", "decode", "tool", "reward", "paused"]

PARTS: tuple[Part, ...] = ("queue", "prefill", "decode", "tool", "reward", "paused")
"""queue: for a place at a worker, or for an engine. tool: with the environment, or the agent's own program. paused: at
an engine that was taking new weights."""

_AHEAD: tuple[Part, ...] = ("decode", "prefill", "paused", "queue")
"""Of calls side by side, the one that is in the first of these says where the episode is."""

_STRETCHES: tuple[Part, ...] = ("queue", "prefill", "decode")
"""What a call's moments divide, over and over."""

KEPT = 4096
"""Pauses of an engine that are remembered: more than any episode outlasts."""


class Slice(NamedTuple):
    """An episode, or a call, was in `part` during [start, end), unix nanoseconds."""

    part: Part
    start: int
    end: int


class Pause(NamedTuple):
    """An engine took new weights in [start, end); one that `drains` first finishes what is in flight."""

    start: int
    end: int
    drains: bool


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


class Pauses:
    """When the engines were paused, as their swaps say."""

    def __init__(self, swaps: Iterable[SwapRecord] = ()) -> None:
        self._of: dict[str, list[Pause]] = {}  # by engine, in order
        for swap in swaps:
            self.add(swap)

    def add(self, swap: SwapRecord) -> None:
        """A start is no pause: nothing is sent to an engine before it is there."""
        if swap.mode == "boot":
            return
        start = nanoseconds(swap.started_at)
        pauses = self._of.setdefault(swap.engine_id, [])
        pauses.append(Pause(start, max(start, nanoseconds(swap.finished_at)), swap.mode == "drain"))
        pauses.sort()
        del pauses[:-KEPT]

    def during(self, engine_id: str | None, start: int, end: int, *, since: int) -> Iterator[tuple[int, int]]:
        """What of [start, end) a call that the engine has had `since` then was held up, in order."""
        pauses = self._of.get(engine_id or "", [])
        reached = start
        for pause in pauses[max(0, bisect_right(pauses, (start,)) - 1) :]:
            if pause.start >= end:
                return
            held = max(reached, pause.start), min(end, pause.end)
            if held[0] < held[1] and not (pause.drains and since < pause.start):
                yield held
                reached = held[1]


def call_slices(call: Call, pauses: Pauses) -> list[Slice]:
    """The call from its start to its end. One without moments (from another gateway, or of an older store) counts as
    decoding throughout."""
    start = nanoseconds(call.started_at)
    end = max(start, nanoseconds(call.ended_at))
    edges = [start]
    for moment in call.moments or [0, 0]:
        edges.append(min(end, max(edges[-1], start + 1000 * moment)))
    edges.append(end)
    engines = _engines(call)
    slices: list[Slice] = []
    for index, (begun, ended) in enumerate(pairwise(edges)):
        part = _STRETCHES[index % 3]
        engine = engines[index // 3] if index // 3 < len(engines) else call.engine_id
        if part != "queue":
            for held, free in pauses.during(engine, begun, ended, since=edges[index - index % 3 + 1]):
                slices += [Slice(part, begun, held), Slice("paused", held, free)]
                begun = free
        slices.append(Slice(part, begun, ended))
    return [each for each in slices if each.start < each.end]


def _engines(call: Call) -> list[str | None]:
    """Of each engine that the call had, in turn; None for one that was lost before its first token: nobody wrote down
    which one it was."""
    parts = iter(call.segments)
    lost = [call.moments[at : at + 3] for at in range(0, len(call.moments) - 2, 3)]
    found: list[str | None] = []
    for _, first, gone in lost:
        part = next(parts, None) if first != gone else None
        found.append(part.engine_id if part else None)
    return found


def episode_slices(
    calls: Sequence[Call],
    pauses: Pauses,
    *,
    admitted: int | None,
    begun: int,
    ended: int,
    scoring: tuple[int, int] | None,
) -> list[Slice]:
    """The episode in order and without a gap from its admission (its beginning, where that was first) to its end, then
    `scoring`, the time of its reward, as far as that comes after. All in unix nanoseconds.

    What calls say of times outside of the episode is left out: clocks are set, and gateways die.
    """
    ended = max(begun, ended)
    start = begun if admitted is None else min(admitted, begun)
    parts = [Slice("queue", start, begun)]
    parts += _furthest([each for call in calls for each in call_slices(call, pauses)], begun, ended)
    if scoring is not None:
        parts.append(Slice("reward", max(ended, scoring[0]), scoring[1]))
    return _joined(parts)


def _joined(slices: Iterable[Slice]) -> list[Slice]:
    """Without empty ones; neighbours in the same part are one."""
    found: list[Slice] = []
    for each in slices:
        if each.start >= each.end:
            continue
        if found and found[-1].part == each.part and found[-1].end == each.start:
            found[-1] = Slice(each.part, found[-1].start, each.end)
        else:
            found.append(each)
    return found


def _furthest(slices: Iterable[Slice], start: int, end: int) -> list[Slice]:
    """[start, end) by the part that is ahead at each instant; the environment's where no call is under way."""
    changes: list[tuple[int, int, Part]] = []
    for each in slices:
        if (inside := max(start, each.start)) < (until := min(end, each.end)):
            changes += [(inside, 1, each.part), (until, -1, each.part)]
    changes.sort()
    under_way = dict.fromkeys(_AHEAD, 0)
    found: list[Slice] = []
    reached = start

    def reach(time: int) -> None:
        part: Part = next((part for part in _AHEAD if under_way[part]), "tool")
        found.append(Slice(part, reached, time))

    for time, change, part in changes:
        reach(time)
        reached = time
        under_way[part] += change
    reach(end)
    return found


def totals(slices: Iterable[Slice]) -> Mapping[Part, int]:
    """Nanoseconds of every part."""
    spent: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for each in slices:
        spent[each.part] += each.end - each.start
    return spent
