"""Invariant 8: no token past the bound gets gradient, and admission keeps most groups within it."""

from agentrl.train.staleness import fresh_mask, token_lags, worst_lag
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
    """Case 59: the part that older weights sampled."""
    assert fresh_mask(TWO_VERSIONS, 5, 1) == [0, 0, 0, 0, 0, 0, 1, 1]
    assert fresh_mask(TWO_VERSIONS, 5, 2) == [0, 0, 1, 1, 1, 0, 1, 1]
    assert TWO_VERSIONS.loss_mask == [0, 0, 1, 1, 1, 0, 1, 1], "the stored row is left as it is"
