"""How far the trainer is from the engine, in numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl_trainers.algorithms.mismatch import mismatch


def test_numbers_by_hand() -> None:
    """Differences log 2 and -log 4: k3 is (2 - 1 - 0.6931) + (0.25 - 1 + 1.3863) = 0.9431."""
    gap = mismatch(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0 - math.log(2), -2.0 + math.log(4)]))
    assert [value.item() for value in gap] == pytest.approx([3 * math.log(2), 2 * math.log(2), 0.943147, 0.25, 2.0])


def test_equal_logprobs_are_no_mismatch() -> None:
    gap = mismatch(torch.tensor([-1.5, -0.1]), torch.tensor([-1.5, -0.1]))
    assert [value.item() for value in gap] == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_an_empty_micro_batch_is_neutral_in_sums_and_extremes() -> None:
    gap = mismatch(torch.empty(0), torch.empty(0))
    assert [value.item() for value in gap] == [0.0, 0.0, 0.0, math.inf, 0.0]
