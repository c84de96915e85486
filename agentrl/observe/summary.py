"""The end of a run: `summary.json`, the learning curve, and what to type next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from agentrl.observe.records import StepRecord, Summary


def write_summary(path: Path, summary: msgspec.Struct) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")


def print_summary(console: Console, summary: Summary, steps: Sequence[StepRecord], directory: Path) -> None:
    if len(steps) > 1:
        console.print(curve(steps), highlight=False, markup=False, soft_wrap=True)
    if summary.success_start is not None and summary.success_end is not None:
        console.print(
            f"held-out success {summary.success_start:.3f} → {summary.success_end:.3f} "
            f"in {summary.steps} steps and {summary.wall_s:.0f} s",
            style="bold",
            highlight=False,
        )
    dropped = ", ".join(f"{reason}: {count}" for reason, count in summary.dropped.items()) or "nothing"
    console.print(
        f"{summary.trajectories} trajectories in {summary.steps} steps, {summary.multi_version_trajectories} of them "
        f"sampled under more than one version; largest lag {summary.staleness_max};\nwithout gradient: {dropped}",
        highlight=False,
    )
    if summary.failed_episodes:
        failed = ", ".join(f"{reason}: {count}" for reason, count in sorted(summary.failed_episodes.items()))
        again = sum(summary.retried_episodes.values())
        console.print(f"episodes that failed: {failed}; played again: {again}", highlight=False)
    if summary.failed_evaluations:
        told = ", ".join(f"{reason}: {count}" for reason, count in sorted(summary.failed_evaluations.items()))
        console.print(f"evaluations without a result: {told}", highlight=False)
    for name, part in summary.reward_parts.items():
        out_s, failures = part.get("outage_s", 0.0), part.get("failures", 0.0)
        if out_s >= 1.0 or failures:
            told = f"reward {name}: out for {out_s:.0f} s, {failures:.0f} episodes left without it"
            console.print(told, highlight=False)
    console.print(
        f"run directory {directory}\n"
        f"  agentrl audit {directory}                      prove that every trained token is the one sampled\n"
        f"  tensorboard --logdir {directory}/tensorboard   all metrics over time",
        highlight=False,
        soft_wrap=True,
    )


def curve(steps: Sequence[StepRecord], *, width: int = 78, height: int = 16) -> str:
    """Success per step as dots and its moving average as a line, drawn with characters."""
    import plotext  # half a second to import: only at the end of a run

    numbers = [record.step for record in steps]
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.ylim(0, 1)
    plotext.scatter(numbers, [record.success for record in steps], marker="·", label="success of a step")
    plotext.plot(numbers, [record.success_average for record in steps], marker="braille", label="moving average")
    plotext.xlabel("step")
    text: str = plotext.uncolorize(plotext.build())
    return text
