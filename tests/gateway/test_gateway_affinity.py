"""Which engine has seen the beginning of a prompt, and the queue's estimate of how long it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.gateway.affinity import BLOCK, MAX_CHAIN, SeenPrefixes, prefix_chain
from agentrl.gateway.waiting import ServiceRate, WaitQueue, retry_after_s


def blocks(*names: int) -> list[int]:
    """A prompt of one whole block per name."""
    return [name for name in names for _ in range(BLOCK)]


def test_only_whole_blocks_count() -> None:
    assert [len(prefix_chain([7] * length)) for length in (0, BLOCK - 1, BLOCK, 2 * BLOCK + 1)] == [0, 0, 1, 2]


def test_a_very_long_prompt_is_looked_at_up_to_a_bound() -> None:
    assert len(prefix_chain([7] * (BLOCK * (MAX_CHAIN + 5)))) == MAX_CHAIN


def test_the_longest_prefix_seen_ends_where_prompts_part() -> None:
    seen = SeenPrefixes()
    seen.add(prefix_chain(blocks(1, 2, 3)))
    prompts = [blocks(1, 2, 3, 4), blocks(1, 2, 9, 3), blocks(1), blocks(2, 3)]
    assert [seen.longest(prefix_chain(prompt)) for prompt in prompts] == [3, 2, 1, 0]


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    seen = SeenPrefixes(max_blocks=4)
    old, used, new = (prefix_chain(blocks(*names)) for names in ((1, 2), (3, 4), (5, 6)))
    for chain in (old, used, used, new):
        seen.add(chain)
    assert [seen.longest(chain) for chain in (old, used, new)] == [0, 2, 2]


def test_a_prompt_that_is_half_forgotten_keeps_its_beginning() -> None:
    seen = SeenPrefixes(max_blocks=3)
    first = prefix_chain(blocks(1, 2, 3))
    seen.add(first)
    seen.add(prefix_chain(blocks(8)))
    assert seen.longest(first) == 2


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=12), st.lists(st.integers(0, 2), max_size=5))
def test_the_index_agrees_with_comparing_the_prompts_themselves(seen: list[list[int]], asked: list[int]) -> None:
    index = SeenPrefixes()
    for names in seen:
        index.add(prefix_chain(blocks(*names)))
    common = 0
    while common < len(asked) and any(names[: common + 1] == asked[: common + 1] for names in seen):
        common += 1
    assert index.longest(prefix_chain(blocks(*asked))) == common


@given(st.lists(st.lists(st.integers(0, 50), max_size=9), max_size=30))
def test_it_never_remembers_more_than_its_bound(seen: list[list[int]]) -> None:
    index = SeenPrefixes(max_blocks=10)
    for names in seen:
        index.add(prefix_chain(blocks(*names)))
        assert len(index) <= 10


def test_the_queue_serves_by_age_and_passes_over_kinds_that_cannot_be_served() -> None:
    queue: WaitQueue[str] = WaitQueue()
    pinned, free = (None, 4), (None, None)
    for kind, name in ((pinned, "p1"), (free, "f1"), (pinned, "p2"), (free, "f2")):
        queue.add(kind, name)
    offered: list[str] = []

    def only_free(name: str) -> bool:
        offered.append(name)
        return name.startswith("f")

    queue.serve(only_free)
    assert offered == ["p1", "f1", "f2"]
    assert queue.drain() == ["p1", "p2"]
    assert len(queue) == 0


def test_who_gives_up_leaves_the_queue() -> None:
    queue: WaitQueue[str] = WaitQueue()
    ticket = queue.add((None, None), "a")
    queue.add((None, None), "b")
    queue.discard((None, None), ticket)
    queue.discard((None, None), ticket)
    assert (len(queue), queue.drain()) == (1, ["b"])


def test_the_rate_is_that_of_the_latest_calls_and_falls_while_none_ends() -> None:
    rate = ServiceRate(window=3)
    assert rate.per_s(0) is None
    for now in (0.0, 100.0, 101.0, 102.0):
        rate.saw_end(now)
    assert (rate.per_s(102), rate.per_s(120)) == (1.0, 0.1)


@pytest.mark.parametrize(
    ("num_waiting", "per_s", "expected"),
    [(100, 10.0, 10.0), (1, 50.0, 1.0), (4096, 0.5, 60.0), (4096, None, 1.0)],
)
def test_retry_after_is_the_time_that_the_queue_takes_between_a_second_and_a_minute(
    num_waiting: int, per_s: float | None, expected: float
) -> None:
    assert retry_after_s(num_waiting, per_s) == expected
