"""Which checkpoints go: by number, never the one just written, the best kept besides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl.train.config import CheckpointConfig
from agentrl.train.retention import Retention


def going(held: dict[int, dict[str, float]], *, written: int, last: int | None = None, keep_best: int = 0) -> list[int]:
    return Retention(last, keep_best, "success").to_delete(held, written)


def test_versions_are_numbers_not_names():
    """Case 70: 125 > 10 > 9."""
    assert going({9: {}, 10: {}, 125: {}}, written=125, last=2) == [9]


def test_all_are_kept_when_nothing_is_said():
    assert going({1: {}, 2: {}}, written=2) == []


def test_keeping_one_keeps_the_one_just_written():
    assert going({1: {}, 2: {}}, written=2, last=1) == [1]


def test_after_a_return_to_an_older_version_what_is_written_stays_though_it_is_not_the_highest():
    """Case 70: a lower step is saved later."""
    assert going({9: {}, 10: {}, 125: {}}, written=10, last=1) == [9]


def test_the_best_are_kept_besides_the_last():
    held = {1: {"success": 0.5}, 2: {"success": 0.9}, 3: {"success": 0.7}, 4: {"success": 0.1}}
    assert going(held, written=4, last=1, keep_best=1) == [1, 3]
    assert going(held, written=4, last=1, keep_best=2) == [1]


def test_what_has_no_score_is_never_the_best():
    assert going({1: {}, 2: {"success": 0.0}, 3: {}}, written=3, last=1, keep_best=2) == [1]
    assert Retention(best_by="success").best({1: {}, 2: {"reward": 1.0}}) is None


def test_of_equal_scores_the_later_is_better():
    assert Retention(best_by="success").best({1: {"success": 0.5}, 10: {"success": 0.5}, 9: {"success": 0.5}}) == 10


@given(st.sets(st.integers(0, 30), min_size=1), st.integers(1, 5), st.integers(0, 5), st.data())
def test_something_is_always_left_and_it_is_what_was_asked_for(versions: set, last: int, keep_best: int, data) -> None:
    written = data.draw(st.sampled_from(sorted(versions)))
    held = {version: {"success": data.draw(st.sampled_from([0.0, 0.5, 1.0]))} for version in versions}
    left = versions - set(going(held, written=written, last=last, keep_best=keep_best))
    assert {written, *sorted(versions)[-last:]} <= left
    assert len(left) <= last + keep_best + 1


def test_best_without_last_is_refused():
    with pytest.raises(ValidationError, match="keep_best = 2 without keep_last: all are kept anyway"):
        CheckpointConfig(keep_last=None, keep_best=2)
