"""Invariant 4, second half: the engine that sampled a token had the version at that time, by its swap log.

A call that outlived an engine has segments: each part of a version span is held to the engine of its own segment.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from agentrl.audit.finding import Finding, Subject, TrajectoryCheck, Verdict
from agentrl.audit.spans import by_engine, untiled
from agentrl.types import Call, SwapRecord

NAME = "swap log"
REBUILT = frozenset({"boot", "recompute", "drain"})
"""Modes after which no token is sampled over keys and values of older weights."""


class SwapLog:
    """Which version each engine served when. Unix seconds.

    A version may be live on an engine from the moment its swap began until the next swap ended: within a swap either
    may have sampled.
    """

    def __init__(self, swaps: Iterable[SwapRecord]) -> None:
        by_engine: dict[str, list[SwapRecord]] = defaultdict(list)
        for swap in swaps:
            by_engine[swap.engine_id].append(swap)
        self._windows: dict[str, dict[int, list[tuple[float, float]]]] = {}
        self._modes: dict[tuple[str, int], set[str]] = defaultdict(set)
        for engine_id, log in by_engine.items():
            log.sort(key=lambda swap: swap.started_at)
            windows: dict[int, list[tuple[float, float]]] = defaultdict(list)
            ends = [swap.finished_at for swap in log[1:]] + [math.inf]
            for swap, end in zip(log, ends, strict=True):
                windows[swap.version].append((swap.started_at, end))
                self._modes[engine_id, swap.version].add(swap.mode)
            self._windows[engine_id] = dict(windows)

    @property
    def empty(self) -> bool:
        return not self._windows

    def rebuilt(self, engine_id: str, version: int) -> bool:
        """Whether every token of this version on this engine followed from the version's own weights alone."""
        modes = self._modes.get((engine_id, version), set())
        return bool(modes) and modes <= REBUILT

    def doubt(self, call: Call, engine_id: str, version: int, slack_s: float) -> str | None:
        """Why `version` cannot have sampled on this engine in this call; None when it can."""
        windows = self._windows.get(engine_id)
        if windows is None:
            return f"engine {engine_id} is not in the swap log"
        if version not in windows:
            return f"engine {engine_id} never had version {version}, only {_ranges(sorted(windows))}"
        start, end = call.started_at - slack_s, call.ended_at + slack_s
        if not any(begin <= end and start <= finish for begin, finish in windows[version]):
            times = ", ".join(f"[{begin - start:+.3f}, {finish - start:+.3f}]" for begin, finish in windows[version])
            return (
                f"version {version} was live on engine {engine_id} in {times}, "
                f"the call ran in [+0.000, {end - start:+.3f}] (seconds since it began)"
            )
        return None


def swap_log_check(log: SwapLog, *, slack_s: float) -> TrajectoryCheck:
    """`slack_s` is how far the clocks of gateway and engine hosts may be apart."""

    def doubts(subject: Subject) -> Iterator[str]:
        for call in subject.trajectory.calls:
            if call.untrainable is None:
                if (gap := untiled(call)) is not None:
                    yield f"call {call.call_id}: {gap}"
                for engine_id, span in by_engine(call):
                    doubt = log.doubt(call, engine_id, span.version, slack_s)
                    if doubt is not None:
                        yield f"call {call.call_id}, tokens [{span.start}, {span.end}): {doubt}"

    def examine(subject: Subject) -> Verdict:
        spans = sum(len(call.versions) for call in subject.trajectory.calls if call.untrainable is None)
        return Verdict(items=spans, findings=[Finding(NAME, subject.session_id, doubt) for doubt in doubts(subject)])

    return TrajectoryCheck(name=NAME, invariant=4, unit="version spans", examine=examine)


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] is "0-2, 5"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
