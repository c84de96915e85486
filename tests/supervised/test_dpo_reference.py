"""A reference model of its own is loaded once, however many times it is asked, and is gone when training begins."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from supervised_builders import answers

from agentrl_trainers.step_tokens import StepTokens
from agentrl_trainers.supervised import rank as supervised_rank
from agentrl_trainers.supervised.config import DpoTrainerConfig
from agentrl_trainers.supervised.rank import DpoRank

LOADED: list[weakref.ref[Any]] = []


class Loaded:
    """In place of FrozenModel: thinks -1 of every token."""

    def __init__(self, path: Path, *_: object, vocab_size: int) -> None:
        LOADED.append(weakref.ref(self))

    def logprobs(self, tokens: StepTokens) -> torch.Tensor:
        return torch.full((tokens.num_tokens,), -1.0)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> DpoRank:
    LOADED.clear()
    monkeypatch.setattr(supervised_rank, "FrozenModel", Loaded)
    config = DpoTrainerConfig.model_validate({"dpo": {"reference": "another/model"}})
    made = DpoRank(0, 1, "127.0.0.1", 0, "a/model", config, 1)
    policy = SimpleNamespace(model_config=SimpleNamespace(vocab_size=40), layout=None)
    made._trainer = SimpleNamespace(policy=policy, step=lambda batch: [one() for one in LOADED])
    return made


def test_it_is_loaded_once_for_all_pairs(rank: DpoRank) -> None:
    rows = answers().rows
    for start in range(0, len(rows), 2):
        asked = rows[start : start + 2]
        assert rank.reference(asked) == [[-1.0] * sum(row.loss_mask) for row in asked]
    assert len(LOADED) == 1


def test_it_is_let_go_of_before_the_first_step(rank: DpoRank) -> None:
    rank.reference(answers().rows)
    assert LOADED[0]() is not None
    assert rank.step(answers()) == [None]
