"""Small batches are written in the event loop while that is quick; otherwise the thread writes them."""

from collections.abc import Sequence

import pytest
from gateway_builders import MemorySink

from agentrl.gateway.in_loop import AVOIDED_S, MOST_BYTES, SLOW_S, InLoop
from agentrl.types import JournalEntry, Trajectory


class Sink(MemorySink):
    """Takes `takes_s` for a transaction, as long as nobody else writes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.takes_s = 0.0
        self.free = True
        self.tried = 0

    def append_at_once(self, entries: Sequence[JournalEntry]) -> bool:
        self.tried += 1
        self.now += self.takes_s
        if self.free:
            self.append(entries)
        return self.free


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def in_loop(sink: Sink) -> InLoop:
    return InLoop(sink, clock=lambda: sink.now)


def entry(size: int = 10) -> JournalEntry:
    return JournalEntry("s", "gateway", bytes(size))


def test_a_small_batch_is_written(in_loop: InLoop, sink: Sink):
    assert in_loop.write([entry(), entry()])
    assert len(sink.journaled["s"]) == 2


@pytest.mark.parametrize(
    "batch", [[entry(MOST_BYTES), entry(1)], [entry(), Trajectory(session_id="t")]], ids=["long", "with a trajectory"]
)
def test_a_long_batch_and_a_trajectory_are_left_to_the_thread(in_loop: InLoop, sink: Sink, batch: list[JournalEntry]):
    assert not in_loop.write(batch)
    assert sink.tried == 0


def test_what_others_hold_up_is_left_to_the_thread_and_tried_again_next_time(in_loop: InLoop, sink: Sink):
    sink.free = False
    assert not in_loop.write([entry()])
    sink.free = True
    assert in_loop.write([entry()])


def test_a_slow_disk_holds_the_loop_up_once_and_then_not_for_a_while(in_loop: InLoop, sink: Sink):
    sink.takes_s = SLOW_S * 2
    assert in_loop.write([entry()])
    sink.takes_s = 0.0
    for _ in range(3):
        assert not in_loop.write([entry()])
    assert sink.tried == 1
    sink.now += AVOIDED_S
    assert in_loop.write([entry()])
