"""What guards stand on: process trees are found and measured rightly, and frames are bounded."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentrl.env.isolated import tree
from agentrl.env.isolated.serve import serve
from agentrl.env.isolated.wire import LENGTH_BYTES, MAX_FRAME, body_length, frame, receive
from agentrl.errors import EnvironmentFault

MIB = 2**20
FORKS = """
import os, sys, time
kept = b"x" * (128 * 2**20)
for _ in range(3):
    if os.fork() == 0:
        time.sleep(1000)
print("forked", flush=True)
sys.stdin.read()
os.killpg(0, 9)
"""


@pytest.fixture
def family() -> Iterator[int]:
    """A process that holds 128 MiB, and three forks of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "forked\n"
    yield process.pid
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


def test_a_process_has_three_children_with_and_without_the_kernels_list(family: int) -> None:
    found = tree.children_of(family)
    assert len(found) == 3
    assert sorted(tree._children_by_search(family)) == sorted(found)
    assert sorted(tree.descendants_of(family)) == sorted(found)


def test_shared_memory_counts_once_in_the_fair_sum_and_in_each_in_the_quick_one(family: int) -> None:
    everybody = [family, *tree.children_of(family)]
    assert 4 * 128 * MIB <= tree.memory_of(everybody) < 4 * 160 * MIB
    assert 128 * MIB <= tree.fair_memory_of(everybody) < 160 * MIB


def test_a_process_that_is_gone_has_neither_children_nor_memory() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert (tree.children_of(process.pid), tree.memory_of([process.pid])) == ([], 0)


def test_a_value_crosses_over_whole_and_the_end_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame({"text": "ü" * 1000}))
        assert receive(theirs) == {"text": "ü" * 1000}
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            receive(theirs)


def test_no_frame_is_longer_than_agreed_in_either_direction() -> None:
    with pytest.raises(ValueError, match="more than the 33,554,432 that one answer may have"):
        frame("x" * MAX_FRAME)
    assert body_length(MAX_FRAME.to_bytes(LENGTH_BYTES, "big")) == MAX_FRAME
    with pytest.raises(EnvironmentFault, match="a frame of 33,554,433 bytes is announced"):
        body_length((MAX_FRAME + 1).to_bytes(LENGTH_BYTES, "big"))


def test_an_environment_whose_worker_left_in_the_middle_of_a_call_ends_without_a_word() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(frame({"call": "make", "env_id": "agentrl/MathWord-v0", "kwargs": {}}))
    ours.close()
    serve(theirs)
    theirs.close()
