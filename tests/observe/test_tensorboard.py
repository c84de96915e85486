"""TensorBoard's files have every number, and a full disk costs them a record and nothing else."""

import contextlib
import logging
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from record_builders import evaluation, step
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentrl.observe.tensorboard import TensorBoard


def read(directory: Path) -> EventAccumulator:
    events = EventAccumulator(str(directory))
    events.Reload()
    return events


@contextlib.contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """What a write takes then ends at that byte, in the middle of a record, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_every_number_is_there(tmp_path: Path):
    sink = TensorBoard(tmp_path)
    sink.stepped(step(7))
    sink.evaluated(evaluation(7, 0.75))
    sink.close()
    events = read(tmp_path)
    assert {"reward", "staleness/1", "phases/train", "trainer/loss", "evaluation/success"} <= set(
        events.Tags()["scalars"]
    )
    assert [(e.step, e.value) for e in events.Scalars("evaluation/success")] == [(7, 0.75)]


def test_a_full_disk_costs_the_records_of_that_time_and_neither_earlier_nor_later_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    sink = TensorBoard(tmp_path)
    sink.stepped(step(1, success=0.25))
    (path,) = tmp_path.iterdir()
    whole = path.stat().st_size
    with no_file_beyond(whole + 100), caplog.at_level(logging.WARNING):
        for number in range(2, 40):  # more than the ten that tensorboardX's own queue holds
            sink.stepped(step(number))
    assert path.stat().st_size == whole, "nothing of a torn record is left"
    assert sum("metrics.jsonl has all of them" in line for line in caplog.messages) == 1, "said once"
    sink.stepped(step(40, success=0.5))
    sink.close()
    assert [(e.step, e.value) for e in read(tmp_path).Scalars("success")] == [(1, 0.25), (40, 0.5)]
    assert "lack 38 records" in caplog.text


def test_a_run_that_is_taken_up_again_writes_a_file_of_its_own(tmp_path: Path):
    for number in (1, 2):
        sink = TensorBoard(tmp_path)
        sink.stepped(step(number))
        sink.close()
    assert len(list(tmp_path.iterdir())) == 2
