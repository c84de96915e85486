"""An evaluation for people: the figures and a table of the tasks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from agentrl.evaluate.records import EvaluationSummary, Interval, TaskResult


def print_report(console: Console, summary: EvaluationSummary, tasks: Sequence[TaskResult], *, rows: int) -> None:
    """The `rows` tasks with the lowest mean reward are shown, 0 for none."""
    if rows and tasks:
        console.print(_task_table(tasks, rows))
    for name, interval in (("success", summary.success), ("reward", summary.reward)):
        if interval is not None:
            console.print(f"{name} {_shown(interval)} on {summary.tasks} tasks, {summary.episodes} episodes")
    for k, value in summary.pass_at.items():
        console.print(f"pass@{k} {value:.3f}")
    if summary.missing:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(summary.missing.items()))
        console.print(
            f"without a reward and in no figure: {reasons}; run the same command again to play them once more",
            style="yellow",
            soft_wrap=True,
        )


def _shown(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.mean:.3f} (one task gives no interval)"
    half = max(interval.high - interval.mean, interval.mean - interval.low)
    return f"{interval.mean:.3f} ± {half:.3f} (95 %: {interval.low:.3f} to {interval.high:.3f})"


def _task_table(tasks: Sequence[TaskResult], rows: int) -> Table:
    lowest = sorted(tasks, key=lambda task: (task.mean_reward is not None, task.mean_reward or 0.0, task.task_id))
    more = f", the {rows} lowest of {len(tasks)}" if len(tasks) > rows else ""
    table = Table(
        "task", "reward", "successes", "missing", "ended", title=f"tasks{more}", box=None, title_justify="left"
    )
    for task in lowest[:rows]:
        reward = "none" if task.mean_reward is None else f"{task.mean_reward:.3f}"
        ended = ", ".join(f"{reason} {count}" for reason, count in sorted(task.stop_reasons.items()))
        table.add_row(task.task_id, reward, f"{task.successes}/{task.samples}", str(task.missing or ""), ended)
    return table
