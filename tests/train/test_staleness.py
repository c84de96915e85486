"""Invariant 8: no token past the bound gets gradient, and admission keeps most groups within it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.train.staleness import AdmissionGate, fresh_mask, token_lags, worst_lag
from agentrl.types import Row, VersionSpan


def row(mask: list[int], *spans: tuple[int, int, int]) -> Row:
    return Row(
        token_ids=list(range(len(mask))),
        loss_mask=mask,
        logprobs=[-1.0 if kept else None for kept in mask],
        versions=[VersionSpan(*span) for span in spans],
    )


TWO_VERSIONS = row([0, 0, 1, 1, 1, 0, 1, 1], (3, 2, 5), (5, 6, 8))


def test_lag_is_the_trained_version_minus_the_sampling_version():
    assert token_lags(TWO_VERSIONS.versions, 5) == {2: 3, 0: 2}
    assert worst_lag([TWO_VERSIONS], 5) == 2


def test_tokens_past_the_bound_are_masked_and_the_others_kept():
    assert fresh_mask(TWO_VERSIONS, 5, 1) == [0, 0, 0, 0, 0, 0, 1, 1]
    assert fresh_mask(TWO_VERSIONS, 5, 2) == [0, 0, 1, 1, 1, 0, 1, 1]
    assert TWO_VERSIONS.loss_mask == [0, 0, 1, 1, 1, 0, 1, 1], "the stored row is left as it is"


def test_capacity_after_a_resume_is_the_capacity_of_a_fresh_start():
    """Case 62: batch 4, lag 1 admits 8 groups both at version 0 and when resuming at version 10, not 48."""
    assert AdmissionGate(max_lag=1, groups_per_step=4).capacity == 8


def test_a_group_is_admitted_and_settled_once():
    gate = AdmissionGate(max_lag=0, groups_per_step=1)
    gate.admit("a")
    with pytest.raises(ValueError, match="already admitted"):
        gate.admit("a")
    with pytest.raises(ValueError, match="1 of 1 outstanding"):
        gate.admit("b")
    gate.settle("a")
    with pytest.raises(ValueError, match="not outstanding"):
        gate.settle("a")


@given(max_lag=st.integers(0, 3), per_step=st.integers(1, 4), steps=st.integers(1, 8))
def test_groups_trained_in_order_never_exceed_the_bound(max_lag: int, per_step: int, steps: int):
    """The gate alone keeps in-order training within K, however long rollouts take."""
    gate = AdmissionGate(max_lag=max_lag, groups_per_step=per_step)
    admitted: list[tuple[str, int]] = []
    number = 0
    for version in range(steps):
        while gate.capacity:
            gate.admit(str(number))
            admitted.append((str(number), version))
            number += 1
        batch, admitted = admitted[:per_step], admitted[per_step:]
        assert all(version - born <= max_lag for _, born in batch)
        for group_id, _ in batch:
            gate.settle(group_id)
