"""A prompt's digest is that of all its ids, however it was come by."""

from __future__ import annotations

import hashlib
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.digest import HELD_BYTES, LONG_BYTES, RunningDigest, digest_of, update

int32 = st.integers(-(2**31), 2**31 - 1)


def test_the_digest_is_blake2b_over_little_endian_int32() -> None:
    assert digest_of([1, 258]) == hashlib.blake2b(struct.pack("<ii", 1, 258), digest_size=16).hexdigest()


@given(st.lists(int32, max_size=600), st.lists(st.integers(0, 600), max_size=4))
def test_a_digest_that_went_on_from_beginnings_is_that_of_the_whole(ids: list[int], cuts: list[int]) -> None:
    running = RunningDigest()
    for _, end in pairwise([0, *sorted(cuts), len(ids)]):
        running = running.to(ids[: max(end, running.length)])
    assert running.to(ids).hex == digest_of(ids)


def test_two_conversations_go_on_from_one_beginning() -> None:
    begun = RunningDigest().to([1, 2, 3])
    assert [begun.to([1, 2, 3, 4]).hex, begun.to([1, 2, 3, 5]).hex] == [
        digest_of([1, 2, 3, 4]),
        digest_of([1, 2, 3, 5]),
    ]
    assert begun.hex == digest_of([1, 2, 3])


@pytest.mark.parametrize("size", [0, 1, HELD_BYTES, HELD_BYTES + 1, 3 * HELD_BYTES, LONG_BYTES, LONG_BYTES + 1])
def test_bytes_that_are_hashed_in_pieces_have_the_digest_of_the_whole(size: int) -> None:
    data, pieces = bytes(i % 251 for i in range(size)), hashlib.blake2b()
    update(pieces, data)
    assert pieces.digest() == hashlib.blake2b(data).digest()
