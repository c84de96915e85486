"""The run in the terminal: a live panel where there is a terminal, a line per step where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from agentrl.observe.records import EvalRecord, ResumeRecord, StepRecord

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, width: int = 60) -> str:
    """Values in [0, 1] as block characters, the last `width` of them."""
    return "".join(_BARS[min(len(_BARS) - 1, max(0, int(value * len(_BARS))))] for value in values[-width:])


def time_left(record: Any, steps: int) -> str:
    """At the pace of the steps so far: `1m20s`."""
    seconds = round((record.training_s / record.step) * (steps - record.step)) if record.step else 0
    return f"{seconds // 60}m{seconds % 60:02d}s"


def step_line(record: StepRecord, steps: int) -> str:
    """One step on one line."""
    lag = max(record.staleness, default=0)
    phases = " ".join(f"{name} {seconds:.1f}s" for name, seconds in record.phases.items() if seconds >= 0.05)
    rate = record.sampled_tokens / record.step_s if record.step_s else 0.0
    return (
        f"step {record.step:>3}/{steps}  reward {record.reward:.2f}  success {record.success:.2f} "
        f"(avg {record.success_average:.2f})  lag {lag}  {rate:,.0f} tok/s  {record.step_s:.1f}s [{phases}]  "
        f"left {time_left(record, steps)}"
    )


def eval_line(record: EvalRecord) -> str:
    missing = f", {record.missing} without a reward" if record.missing else ""
    return f"held-out success {record.success:.3f} on {record.tasks} tasks at version {record.version}{missing}"


def resume_line(record: ResumeRecord) -> str:
    start = "the initial model" if record.checkpoint is None else f"checkpoint v{record.checkpoint}"
    return (
        f"goes on at version {record.version}: {start}, {record.replayed} step(s) trained again, "
        f"{record.adopted_groups} group(s) taken up, {record.sealed_sessions} broken session(s) ended"
    )


def failed_evaluation_line(version: int, reason: str) -> str:
    return f"version {version} has no evaluation: {reason}; logs/driver.log says more"


class View(NamedTuple):
    """How the records of one kind of run look."""

    step_line: Callable[[Any, int], str]  # of a step and of how many there will be
    eval_line: Callable[[Any], str]
    figures: Callable[[Any], RenderableType]  # of the last step
    trend: Callable[[Sequence[Any]], RenderableType]  # of all steps so far
    status: str  # between steps


class LineDisplay:
    """For logs and pipes."""

    def __init__(self, console: Console, *, steps: int, view: View | None = None) -> None:
        self._console = console
        self._steps = steps
        self._view = view or REINFORCEMENT

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """A line at each quarter."""
        if done * 4 // total > (done - 1) * 4 // total:
            self.say(f"{what}: {done} of {total}")

    def stepped(self, record: Any) -> None:
        self.say(self._view.step_line(record, self._steps))

    def evaluated(self, record: Any) -> None:
        self.say(self._view.eval_line(record))

    def resumed(self, record: Any) -> None:
        self.say(resume_line(record))

    def evaluation_failed(self, version: int, reason: str) -> None:
        self.say(failed_evaluation_line(version, reason))

    def close(self) -> None:
        pass


class LiveDisplay:
    """For people: a panel that stays in place, under the lines of what happened."""

    def __init__(self, console: Console, *, steps: int, name: str, view: View | None = None) -> None:
        self._name = name
        self._view = view or REINFORCEMENT
        self._steps: list[Any] = []
        self._status = "starting"
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            expand=True,
        )
        self._bar = self._progress.add_task("steps", total=steps)
        self._live = Live(self._panel(), console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def say(self, text: str) -> None:
        self._status = text
        self._live.console.print(Text(text, style="dim"))
        self._live.update(self._panel())

    def progress(self, what: str, done: int, total: int) -> None:
        self._status = f"{what}: {done} of {total}"
        self._live.update(self._panel())

    def stepped(self, record: Any) -> None:
        self._steps.append(record)
        self._status = self._view.status
        self._progress.update(self._bar, completed=record.step)
        self._live.update(self._panel())

    def evaluated(self, record: Any) -> None:
        self.say(self._view.eval_line(record))

    def resumed(self, record: Any) -> None:
        self.say(resume_line(record))
        self._progress.update(self._bar, completed=record.version)

    def evaluation_failed(self, version: int, reason: str) -> None:
        self.say(failed_evaluation_line(version, reason))

    def close(self) -> None:
        self._live.stop()

    def _panel(self) -> RenderableType:
        parts: list[RenderableType] = [self._progress, Text(self._status, style="dim")]
        if self._steps:
            parts += [self._view.figures(self._steps[-1]), self._view.trend(self._steps)]
        return Panel(Group(*parts), title=f"agentrl · {self._name}", border_style="cyan")


def _figures(record: StepRecord) -> Table:
    table = Table.grid(padding=(0, 3))
    seconds = "  ".join(f"{name} {value:.1f}" for name, value in record.phases.items())
    lags = "  ".join(f"{lag}: {count:,}" for lag, count in record.staleness.items())
    dropped = "  ".join(f"{reason} {count:,}" for reason, count in record.dropped_groups.items()) or "none"
    rate = record.sampled_tokens / record.step_s if record.step_s else 0.0
    gap = record.trainer.get("engine_gap_max")
    table.add_row(
        "reward", f"{record.reward:.3f}", "success", f"{record.success:.3f} (avg {record.success_average:.3f})"
    )
    table.add_row("tokens/s", f"{rate:,.0f}", "trained tokens", f"{record.trained_tokens:,} in {record.rows} rows")
    table.add_row("lag: tokens", lags, "groups under way", str(record.groups_under_way))
    table.add_row("seconds", seconds, "dropped groups", dropped)
    if gap is not None:
        table.add_row("engine gap", f"{gap:.1e} max", "step", f"{record.step_s:.1f} s")
    return table


def _trend(records: Sequence[StepRecord]) -> Text:
    return Text(f"success {sparkline([record.success_average for record in records])}", style="green")


REINFORCEMENT = View(
    step_line=step_line, eval_line=eval_line, figures=_figures, trend=_trend, status="training; rollouts go on"
)


def display_for(console: Console, *, steps: int, name: str, view: View = REINFORCEMENT) -> LineDisplay | LiveDisplay:
    if console.is_terminal:
        return LiveDisplay(console, steps=steps, name=name, view=view)
    return LineDisplay(console, steps=steps, view=view)
