"""The loop over a trainer that only takes notes: what it is asked, in which order, with which rows."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from agentrl.observe.display import display_for
from agentrl.observe.supervised import (
    SUPERVISED,
    SupervisedRecorder,
    eval_line,
    print_supervised_summary,
    step_line,
)
from agentrl.train.supervised.config import EpochsConfig
from agentrl.train.supervised.dataset import Dataset
from agentrl.train.supervised.items import Item
from agentrl.train.supervised.loop import SupervisedLoop
from agentrl.types import Batch, TrainRow


class Notes:
    """A trainer whose loss is 1 / (steps so far + 1)."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.rows: list[list[TrainRow]] = []

    async def step(self, batch: Batch) -> dict[str, float]:
        self.asked.append(f"step {batch.version}")
        self.rows.append(batch.rows)
        tokens = sum(len(row.token_ids) for row in batch.rows)
        trained = float(batch.num_tokens)
        return {"loss": 1 / (batch.version + 1), "trained_tokens": trained, "row_tokens": tokens, "accuracy": 0.5}

    async def evaluate(self, batch: Batch) -> dict[str, float]:
        self.asked.append(f"evaluate {batch.version}")
        return {"loss": 2.0 - batch.version, "accuracy": 1.0}

    async def reference(self, rows: list[TrainRow]) -> list[list[float]]:
        self.asked.append(f"reference of {len(rows)}")
        return [[-float(row.token_ids[0])] * sum(row.loss_mask) for row in rows]


class NotedSaves:
    """Every second version is due."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    def due(self, version: int) -> bool:
        return version % 2 == 0

    async def save(self, version: int, *, scores: Any, run: Any) -> None:
        self._asked.append(f"save {version}")


class Sink:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stepped(self, record: Any) -> None:
        self.lines.append(step_line(record, 3))

    def evaluated(self, record: Any) -> None:
        self.lines.append(eval_line(record))

    def close(self) -> None: ...


def row(number: int) -> TrainRow:
    zeros = [0.0] * 3
    return TrainRow(session_id="", token_ids=[number] * 3, loss_mask=[0, 1, 1], logprobs=zeros, advantages=zeros)


def loop(trainer: Notes, recorder: SupervisedRecorder, *, held_out: int = 1, pairs: bool = False, **given: Any) -> Any:
    items = [Item(str(at), "", (row(2 * at), row(2 * at + 1)) if pairs else (row(at),)) for at in range(6)]
    return SupervisedLoop(
        config=EpochsConfig(batch_size=2, **given),
        saver=NotedSaves(trainer.asked),
        dataset=Dataset(train=items[held_out:], held_out=items[:held_out]),
        trainer=trainer,
        recorder=recorder,
        seed=0,
        asks_reference=pairs,
    )


async def test_a_run_evaluates_first_and_last_and_saves_what_it_ends_with() -> None:
    trainer, recorder = Notes(), SupervisedRecorder([])
    await loop(trainer, recorder, eval_every=2).run()
    assert trainer.asked == [
        "evaluate 0", "step 0", "step 1", "save 2", "evaluate 2", "step 2", "save 3", "evaluate 3",
    ]  # fmt: skip
    assert [len(rows) for rows in trainer.rows] == [2, 2, 1]
    assert [record.epoch for record in recorder.steps] == pytest.approx([0.4, 0.8, 1.0])


async def test_a_bound_on_steps_ends_a_run_within_a_pass() -> None:
    trainer = Notes()
    await loop(trainer, SupervisedRecorder([]), steps=1, epochs=5, held_out=0).run()
    assert trainer.asked == ["step 0", "save 1"]


async def test_the_reference_is_asked_once_for_every_row_and_goes_along_with_it() -> None:
    """Its logprobs stand where a row is trained, and nowhere else."""
    trainer = Notes()
    await loop(trainer, SupervisedRecorder([]), pairs=True, epochs=2).run()
    assert trainer.asked[:2] == ["reference of 12", "evaluate 0"]
    assert trainer.asked.count("reference of 12") == 1
    for one in (one for rows in trainer.rows for one in rows):
        assert one.logprobs == [0.0, -float(one.token_ids[0]), -float(one.token_ids[0])]
    chosen = [one.token_ids[0] for rows in trainer.rows for one in rows[::2]]
    assert all(number % 2 == 0 for number in chosen)


async def test_the_summary_has_where_the_losses_began_and_ended() -> None:
    sink = Sink()
    recorder = SupervisedRecorder([sink])
    await loop(Notes(), recorder).run()
    found = recorder.summary(kind="sft", ended="done", items=5, held_out_items=1, left_out={"too_long": 2})
    assert (found.steps, found.loss_start, found.held_out_start["loss"], found.held_out_end["loss"]) == (
        3,
        1.0,
        2.0,
        -1.0,
    )
    assert found.loss_end == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert found.left_out == {"too_long": 2}
    assert sink.lines[0] == "held out: loss 2.0000  accuracy 1.000 on 1 at version 0"
    assert sink.lines[1].startswith("step   1/3  loss 1.0000 (avg 1.0000)  accuracy 0.500  epoch 0.40  ")


@pytest.mark.parametrize("terminal", [True, False])
async def test_the_display_says_loss_accuracy_and_pace_and_the_end_what_was_gained(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=terminal)
    display = display_for(console, steps=3, name="demo", view=SUPERVISED)
    recorder = SupervisedRecorder([display])
    await loop(Notes(), recorder).run()
    recorder.close()
    found = recorder.summary(kind="dpo", ended="done", items=5, held_out_items=1, left_out={})
    print_supervised_summary(console, found, "runs/demo", "runs/demo/checkpoints/v3")
    text = out.getvalue()
    for part in ("held out: loss 2.0000", "accuracy 0.500", "3/3", "loss 2.0000 → -1.0000", "runs/demo/checkpoints/v3"):
        assert part in text
