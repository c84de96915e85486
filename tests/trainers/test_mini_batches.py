"""Which rows each update of a step trains: whole trajectories, each once an epoch, always with something to train."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from trainer_builders import row

from agentrl.types import TrainRow
from agentrl_trainers.algorithms.mini_batches import balanced, mini_batches, untrained_sessions

# Of each row: its session, its number of trained tokens.
steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=14).filter(
    lambda rows: any(count for _, count in rows)
)


def rows_of(step: list[tuple[int, int]]) -> list[TrainRow]:
    return [row(6, seed=session, trained=list(range(1, 1 + count))) for session, count in step]


@given(steps, st.integers(1, 5), st.integers(1, 3), st.integers(0, 9))
def test_every_row_is_trained_once_an_epoch(step: list[tuple[int, int]], count: int, epochs: int, seed: int) -> None:
    rows = rows_of(step)
    parts = mini_batches(rows, count=count, epochs=epochs, seed=seed)
    assert len(parts) % epochs == 0
    each = len(parts) // epochs
    for epoch in range(epochs):
        trained = sorted(index for part in parts[epoch * each : (epoch + 1) * each] for index in part)
        assert trained == list(range(len(rows)))


def test_a_session_is_untrained_when_every_update_that_it_was_in_was_skipped() -> None:
    """Two epochs of two updates, rows of sessions 0, 1, 1, 2: session 1 is only in those that were not made."""
    rows = rows_of([(0, 1), (1, 2), (1, 1), (2, 3)])
    parts = [[0, 3], [1, 2], [0, 1, 2], [3]]
    assert untrained_sessions(rows, parts, [True, False, False, True]) == ("s1",)
    assert untrained_sessions(rows, parts, [False, False, False, True]) == ("s0", "s1")
    assert untrained_sessions(rows, parts, [False] * 4) == ("s0", "s1", "s2")
    assert untrained_sessions(rows, parts, [True] * 4) == ()


@given(steps, st.integers(1, 5), st.integers(0, 9))
def test_a_trajectory_is_never_cut(step: list[tuple[int, int]], count: int, seed: int) -> None:
    rows = rows_of(step)
    parts = mini_batches(rows, count=count, epochs=1, seed=seed)
    homes = {
        session: {at for at, part in enumerate(parts) for index in part if rows[index].session_id == session}
        for session in {one.session_id for one in rows}
    }
    assert {session: len(places) for session, places in homes.items()} == dict.fromkeys(homes, 1)


@given(steps, st.integers(1, 5), st.integers(0, 9))
def test_every_update_has_something_to_train(step: list[tuple[int, int]], count: int, seed: int) -> None:
    """A part of rows whose tokens are all masked would be a mean over nothing."""
    rows = rows_of(step)
    parts = mini_batches(rows, count=count, epochs=1, seed=seed)
    assert all(sum(sum(rows[index].loss_mask) for index in part) > 0 for part in parts)
    with_tokens = {one.session_id for one in rows if sum(one.loss_mask)}
    assert len(parts) == min(count, len(with_tokens))


@given(steps, st.integers(1, 5), st.integers(0, 9))
def test_no_part_is_behind_another_by_more_than_a_trajectory(
    step: list[tuple[int, int]], count: int, seed: int
) -> None:
    rows = rows_of(step)
    parts = mini_batches(rows, count=count, epochs=1, seed=seed)
    loads = [sum(sum(rows[index].loss_mask) for index in part) for part in parts]
    of_session: dict[str, int] = {}
    for one in rows:
        of_session[one.session_id] = of_session.get(one.session_id, 0) + sum(one.loss_mask)
    assert max(loads) - min(loads) <= max(of_session.values())


def test_parts_are_balanced_by_trained_tokens() -> None:
    """9 alone, then 4 + 3 + 1 together."""
    assert balanced([9, 4, 3, 1], 2) == [[0], [1, 2, 3]]


def test_one_part_keeps_the_order_of_the_rows() -> None:
    assert mini_batches(rows_of([(2, 1), (0, 1), (1, 1)]), count=1, epochs=2, seed=5) == [[0, 1, 2], [0, 1, 2]]


def test_epochs_and_seeds_shuffle_anew_and_a_seed_repeats() -> None:
    rows = rows_of([(session, 1) for session in range(8)])
    first, again, other = (mini_batches(rows, count=2, epochs=2, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first[:2] != first[2:]
    assert first != other
