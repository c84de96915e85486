"""Where a run's time went, from its spans: reads `traces/spans.jsonl` and adds up. Keeps a few numbers an episode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.observe.episode_time import PARTS, Part
from agentrl.observe.spans import ReadSpan, read_line
from agentrl.observe.traces import SPANS

SLICES = (("fastest half", 0.0, 0.5), ("next four tenths", 0.5, 0.9), ("slowest tenth", 0.9, 1.0))
"""Of the episodes by how long they took."""


@dataclass(frozen=True)
class EpisodeTime:
    """Seconds."""

    spent: Mapping[Part, float]
    siblings: float  # it had ended, and its group went on

    @property
    def total(self) -> float:
        return sum(self.spent.values())


@dataclass(frozen=True)
class Split:
    """Of some episodes: their number, the median of their seconds, and the share of each part in all of them."""

    name: str
    episodes: int
    median: float
    shares: Mapping[Part, float]


@dataclass
class TraceReport:
    """What the spans of a run add up to. Seconds throughout."""

    episodes: list[EpisodeTime] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)  # of each trained group, scored and not yet taken
    steps: int = 0
    step_seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)  # over all steps
    unreadable: int = 0  # lines: the last one of a run that was killed, for one

    def splits(self) -> list[Split]:
        """Of all episodes, then of those of each of SLICES that has any."""
        ordered = sorted(self.episodes, key=lambda episode: episode.total)
        found = [_split("all", ordered)] if ordered else []
        for name, begin, end in SLICES:
            part = ordered[round(begin * len(ordered)) : round(end * len(ordered))]
            found += [_split(name, part)] if part else []
        return found

    @property
    def siblings(self) -> list[float]:
        return [episode.siblings for episode in self.episodes]

    @property
    def unaccounted(self) -> float:
        """Of the steps' time what no phase has: books, records, admissions."""
        return max(0.0, self.step_seconds - sum(self.phases.values()))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so much of them does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def read_report(traces: Path, *, mode: str = "train") -> TraceReport:
    """Of the run's traces directory. `mode`: whose episodes. Raises OSError when there are none."""
    report = TraceReport()
    for span in _spans(traces, report):
        _add(report, span, mode)
    return report


def _spans(traces: Path, report: TraceReport) -> Iterator[ReadSpan]:
    """The older file first."""
    paths = [traces / f"{SPANS}.1", traces / SPANS]
    for path in paths if paths[0].exists() else paths[1:]:
        with path.open("rb") as lines:
            for line in lines:
                try:
                    yield from read_line(line)
                except ValueError:
                    report.unreadable += 1


def _add(report: TraceReport, span: ReadSpan, mode: str) -> None:
    said = span.attributes
    if said.get("gen_ai.operation.name") == "invoke_agent":
        if said.get("agentrl.mode") == mode:
            spent: dict[Part, float] = {part: said[f"agentrl.{part}_ns"] / 1e9 for part in PARTS}
            report.episodes.append(EpisodeTime(spent, said["agentrl.siblings_ns"] / 1e9))
    elif span.name == "step":
        report.steps += 1
        report.step_seconds += (span.end - span.start) / 1e9
    elif span.name == "group":
        if "agentrl.ready_ns" in said:
            report.ready.append(said["agentrl.ready_ns"] / 1e9)
    elif span.parent_id and "agentrl.group.id" not in said and "gen_ai.operation.name" not in said:
        report.phases[span.name] = report.phases.get(span.name, 0.0) + (span.end - span.start) / 1e9


def _split(name: str, episodes: Sequence[EpisodeTime]) -> Split:
    total = sum(episode.total for episode in episodes)
    spent = {part: sum(episode.spent[part] for episode in episodes) for part in PARTS}
    shares = {part: value / total if total else 0.0 for part, value in spent.items()}
    return Split(name, len(episodes), quantile([episode.total for episode in episodes], 0.5), shares)


def waits(report: TraceReport) -> Iterable[str]:
    """Who waited for whom, in sentences."""
    if report.step_seconds:
        waited = report.phases.get("wait", 0.0)
        yield f"the trainer waited for episodes {waited / report.step_seconds:.0%} of its time ({waited:.1f} s)"
    if report.ready:
        yield (
            f"finished groups waited for the trainer {quantile(report.ready, 0.5):.1f} s "
            f"(median; 90th percentile {quantile(report.ready, 0.9):.1f} s)"
        )
    if report.episodes:
        yield (
            f"finished episodes waited for their group {quantile(report.siblings, 0.5):.1f} s "
            f"(median; 90th percentile {quantile(report.siblings, 0.9):.1f} s)"
        )
