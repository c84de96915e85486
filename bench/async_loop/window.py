"""A run's window, from what the run left: the steps' records, the swap log and the calls in its store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.types import Call, Trajectory
from bench.async_loop.arithmetic import Played

PHASES = ("wait", "batch", "train", "publish")


def played(
    began: float, ended: float, *, groups: int, steps: Sequence[Mapping[str, Any]], trajectories: Iterable[Trajectory]
) -> Played:
    """`steps`: the records of the steps within, as `metrics.jsonl` has them; moments are unix seconds."""
    use = EngineUse(began, ended)
    for trajectory in trajectories:
        for call in trajectory.calls:
            use.add(call)
    return Played(
        seconds=ended - began,
        groups=groups,
        steps=len(steps),
        phases={phase: sum(step["phases"].get(phase, 0.0) for step in steps) for phase in PHASES},
        engine_busy_s=use.busy_s(),
        sequences=use.sequence_s / (ended - began),
        turns=use.turns,
        tokens=use.tokens,
        reprefilled_tokens=use.reprefilled_tokens,
        staleness=_sum(step["staleness"] for step in steps),
        dropped_tokens=_sum(step["dropped_tokens"] for step in steps),
    )


class EngineUse:
    """What the engines did between two moments, by the calls that the gateway recorded."""

    def __init__(self, began: float, ended: float) -> None:
        self._began, self._ended = began, ended
        self._spans: list[tuple[float, float]] = []
        self.turns = 0
        self.tokens = 0
        self.reprefilled_tokens = 0
        self.sequence_s = 0.0

    def add(self, call: Call) -> None:
        """One that ended within counts as a turn; the time that it had an engine counts as far as it is within."""
        start = max(self._began, call.started_at + (call.moments[0] / 1e6 if call.moments else 0.0))
        end = min(self._ended, call.ended_at)
        if end > start:
            self._spans.append((start, end))
            self.sequence_s += end - start
        if self._began < call.ended_at <= self._ended:
            self.turns += 1
            self.tokens += len(call.token_ids)
            self.reprefilled_tokens += rebuilt(call)

    def busy_s(self) -> float:
        """With at least one call."""
        busy, until = 0.0, self._began
        for start, end in sorted(self._spans):
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return busy


def rebuilt(call: Call) -> int:
    """Tokens whose KV cache swaps dropped under the call: at each, its prompt and what was sampled of it until then.

    One that a swap met before its first token is not seen.
    """
    return sum(len(call.prompt_token_ids) + span.start for span in call.versions[1:])


def _sum(counts: Iterable[Mapping[Any, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for key, count in each.items():
            total[str(key)] = total.get(str(key), 0) + count
    return total
