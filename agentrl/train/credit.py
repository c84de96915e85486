"""Which call sampled which trained tokens of a row, and where along the row its trajectory's reward was earned.

A call's sample is tokens [P, P + S) of the one row that trains it, P being the length of its prompt (the token graph of
the gateway makes rows like that). Everything is compared before it is believed: where ids, logprobs or masks do not
fit, there is no answer, never a guess.

Axes: T tokens of a row, C calls of a trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrl.types import Call, Row, Trajectory


@dataclass(frozen=True)
class Sample:
    """Tokens [start, end) of a row are the sample of call `call` of its trajectory."""

    call: int
    start: int
    end: int
    trained: bool  # whether this row trains it; otherwise the call is one that must not be trained


def locate_samples(trajectory: Trajectory) -> list[list[Sample]] | None:
    """Of each row, the samples that are accounted for there, from its beginning to its end; each call once.

    None when the rows' trained tokens are not exactly the samples of the trajectory's calls.
    """
    calls, claimed = trajectory.calls, set[int]()
    located: list[list[Sample]] = []
    for row in trajectory.rows:
        leaf = _leaf_of(row, calls, claimed)
        if leaf is None:
            return None
        samples = []
        for index in _upwards(calls, leaf):
            call = calls[index]
            if index not in claimed:
                claimed.add(index)
                start = len(call.prompt_token_ids)
                samples.append(Sample(index, start, start + len(call.token_ids), call.untrainable is None))
        samples.reverse()
        if not _fits(row, samples, calls):
            return None
        located.append(samples)
    return located


def _leaf_of(row: Row, calls: Sequence[Call], claimed: set[int]) -> int | None:
    """The first call left whose prompt + sample the row is. Rows are in the order of their last calls."""
    for index, call in enumerate(calls):
        if index in claimed or call.untrainable is not None:
            continue
        if len(call.prompt_token_ids) + len(call.token_ids) != len(row.token_ids):
            continue
        if call.prompt_token_ids + call.token_ids == row.token_ids and _same_logprobs(row, call):
            return index
    return None


def _upwards(calls: Sequence[Call], leaf: int) -> Iterator[int]:
    index: int | None = leaf
    while index is not None:
        yield index
        parent = calls[index].parent
        if parent is not None and parent >= index:  # as the graph never has it: it would not end
            return
        index = parent


def _fits(row: Row, samples: Sequence[Sample], calls: Sequence[Call]) -> bool:
    """Whether the row trains these samples and nothing else."""
    mask = [0] * len(row.token_ids)
    for sample in samples:
        call = calls[sample.call]
        if row.token_ids[sample.start : sample.end] != call.token_ids:
            return False
        if sample.trained:
            if not _same_logprobs(row, call):
                return False
            mask[sample.start : sample.end] = [1] * len(call.token_ids)
    return mask == row.loss_mask


def _same_logprobs(row: Row, call: Call) -> bool:
    start = len(call.prompt_token_ids)
    return row.logprobs[start : start + len(call.token_ids)] == call.logprobs


def earned_by_calls(trajectory: Trajectory) -> list[float]:
    """[C], what of the trajectory's reward was earned at each call; 0.0 where nobody said."""
    return [0.0 if call.reward is None else call.reward for call in trajectory.calls]


def spread_over_calls(values_C: Sequence[float], samples: Sequence[Sample], mask_T: Sequence[int]) -> list[float]:
    """[T], each trained token with the value of the call that sampled it, 0.0 where `mask_T` is 0."""
    spread = [0.0] * len(mask_T)
    for sample in samples:
        if sample.trained:
            value = values_C[sample.call]
            spread[sample.start : sample.end] = [value * kept for kept in mask_T[sample.start : sample.end]]
    return spread


def number_calls(samples: Sequence[Sample], mask_T: Sequence[int]) -> list[int]:
    """[T], the number in the row of the call that sampled the token, counted from 0; 0 where `mask_T` is 0."""
    trained = [sample for sample in samples if sample.trained]
    numbers = [0] * len(mask_T)
    for number, sample in enumerate(trained):
        numbers[sample.start : sample.end] = [number * kept for kept in mask_T[sample.start : sample.end]]
    return numbers


def place_rewards(
    reward: float, earned_C: Sequence[float], samples: Sequence[Sample], located: set[int], mask_T: Sequence[int]
) -> list[float]:
    """[T], rewards at the tokens that earned them: r_c at the last trained token of call c, the rest at the row's.

    The rest is `reward` less what the calls in any row (`located`) earned, so the tokens of an only row add up to
    `reward`; with several rows each ends with the rest. Where call c has no trained token in the row, r_c is at the
    last one before it, which is the last action that led to it; with none before it, nowhere.
    """
    placed = [0.0] * len(mask_T)
    trained = [token for token, kept in enumerate(mask_T) if kept]
    if not trained:
        return placed
    at = 0  # how many of the trained tokens are before the end of the sample
    for sample in samples:
        while at < len(trained) and trained[at] < sample.end:
            at += 1
        if at:
            placed[trained[at - 1]] += earned_C[sample.call]
    placed[trained[-1]] += reward - sum(earned_C[call] for call in located)
    return placed
