"""What a run that learns from data says of itself: its records, its summary, and how they look in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.observe.display import View, sparkline, time_left
from agentrl.observe.recorder import MOVING_AVERAGE, RunRecorder

BY_THE_TRAINER = ("accuracy", "margin")
"""Metrics that are shown, where the kind of run has them."""


class StepRecord(Struct, kw_only=True):
    """One optimizer step; `step` k produced version k. Seconds are wall clock."""

    step: int
    epoch: float  # passes over the training data so far
    loss: float
    trained_tokens: int
    row_tokens: int
    trainer: dict[str, float]  # whatever else the trainer said
    elapsed_s: float = 0.0  # since the run began; the recorder fills it in
    step_s: float = 0.0  # since the step before; the recorder fills it in
    training_s: float = 0.0  # of all steps so far; the recorder fills it in
    loss_average: float = 0.0  # moving average; the recorder fills it in


class EvalRecord(Struct, kw_only=True):
    """The loss on what is held out, under one version."""

    version: int
    items: int  # rows, or pairs
    loss: float
    trainer: dict[str, float]
    elapsed_s: float = 0.0


class Summary(Struct, kw_only=True):
    """`summary.json`: what is left to say when a run has ended. Losses are None where there was none."""

    kind: str
    ended: str  # "done", "interrupted" or "failed"
    steps: int
    wall_s: float
    loss_start: float | None  # of the first step
    loss_end: float | None  # mean over the last ten steps
    held_out_start: dict[str, float]  # loss and metrics under the initial weights; {} when nothing is held out
    held_out_end: dict[str, float]
    items: int  # rows or pairs to learn from
    held_out_items: int
    left_out: dict[str, int]  # reason -> lines, trajectories or rows
    skipped_steps: int
    error: str | None = None


class SupervisedRecorder(RunRecorder[StepRecord, EvalRecord]):
    """Of a run that learns from data."""

    def _average(self, record: StepRecord) -> None:
        record.loss_average = self._recent_loss()

    def summary(
        self,
        *,
        kind: str,
        ended: str,
        items: int,
        held_out_items: int,
        left_out: Mapping[str, int],
        error: str | None = None,
    ) -> Summary:
        first, last = (self.evaluations[0], self.evaluations[-1]) if self.evaluations else (None, None)
        return Summary(
            kind=kind,
            ended=ended,
            steps=len(self.steps),
            wall_s=round(self.elapsed_s, 3),
            loss_start=self.steps[0].loss if self.steps else None,
            loss_end=self._recent_loss() if self.steps else None,
            held_out_start=_numbers(first) if first and first.version == 0 else {},
            held_out_end=_numbers(last) if last and last.version > 0 else {},
            items=items,
            held_out_items=held_out_items,
            left_out=dict(sorted(left_out.items())),
            skipped_steps=int(sum(record.trainer.get("skipped", 0.0) for record in self.steps)),
            error=error,
        )

    def _recent_loss(self) -> float:
        window = [past.loss for past in self.steps[-MOVING_AVERAGE:]]
        return sum(window) / len(window)


def _numbers(record: EvalRecord) -> dict[str, float]:
    return {"loss": record.loss, **record.trainer}


def _shown(metrics: Mapping[str, float]) -> str:
    return "".join(f"  {name} {metrics[name]:.3f}" for name in BY_THE_TRAINER if name in metrics)


def step_line(record: StepRecord, steps: int) -> str:
    rate = record.row_tokens / record.step_s if record.step_s else 0.0
    return (
        f"step {record.step:>3}/{steps}  loss {record.loss:.4f} (avg {record.loss_average:.4f})"
        f"{_shown(record.trainer)}  epoch {record.epoch:.2f}  {rate:,.0f} tok/s  {record.step_s:.1f}s  "
        f"left {time_left(record, steps)}"
    )


def eval_line(record: EvalRecord) -> str:
    return f"held out: loss {record.loss:.4f}{_shown(record.trainer)} on {record.items:,} at version {record.version}"


def _figures(record: StepRecord) -> Table:
    table = Table.grid(padding=(0, 3))
    rate = record.row_tokens / record.step_s if record.step_s else 0.0
    table.add_row("loss", f"{record.loss:.4f} (avg {record.loss_average:.4f})", "epoch", f"{record.epoch:.2f}")
    table.add_row("tokens/s", f"{rate:,.0f}", "trained tokens", f"{record.trained_tokens:,}")
    grad, rate = record.trainer.get("grad_norm", 0.0), record.trainer.get("learning_rate", 0.0)
    table.add_row("gradient norm", f"{grad:.3f}", "learning rate", f"{rate:.2e}")
    table.add_row("", _shown(record.trainer).strip(), "step", f"{record.step_s:.1f} s")
    return table


def _trend(records: Sequence[StepRecord]) -> Text:
    """Of the loss, the largest so far at the top."""
    most = max(record.loss_average for record in records) or 1.0
    return Text(f"loss {sparkline([record.loss_average / most for record in records])}", style="green")


SUPERVISED = View(step_line=step_line, eval_line=eval_line, figures=_figures, trend=_trend, status="training")


def print_supervised_summary(console: Console, summary: Summary, root: object, exported: object) -> None:
    """What was gained on what is held out, and what to do with `exported`, the directory of the model."""
    start, end = summary.held_out_start, summary.held_out_end
    if start and end:
        shown = [key for key in ("loss", *BY_THE_TRAINER) if key in end]
        line = ", ".join(f"{key} {start[key]:.4f} → {end[key]:.4f}" for key in shown)
        console.print(f"held out: {line}, on {summary.held_out_items:,}", style="bold", highlight=False, soft_wrap=True)
    if summary.loss_start is not None and summary.loss_end is not None:
        left_out = ", ".join(f"{reason}: {count:,}" for reason, count in summary.left_out.items()) or "nothing"
        console.print(
            f"training loss {summary.loss_start:.4f} → {summary.loss_end:.4f} in {summary.steps} steps and "
            f"{summary.wall_s:.0f} s; left out: {left_out}",
            highlight=False,
        )
    console.print(
        f"run directory {root}\n"
        f"  the model is in {exported}; use it as `model` of another run, or evaluate or serve it\n"
        f"  tensorboard --logdir {root}/tensorboard   all metrics over time",
        highlight=False,
        soft_wrap=True,
    )
