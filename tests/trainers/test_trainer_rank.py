"""A trainer rank that cannot start, or is used too early, says why. The ranks themselves are in tests/stack."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from trainer_builders import mixed_batch, save_tiny_model

from agentrl.errors import TrainerError
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.export import check_names
from agentrl_trainers.deepspeed.process_group import open_store
from agentrl_trainers.deepspeed.rank import TrainerRank


def rank_of_two(port: int, rank: int = 0) -> TrainerRank:
    return TrainerRank(rank, 2, "127.0.0.1", port, "nowhere", TrainerConfig(collective_timeout_s=1.0), 1)


def test_a_taken_port_is_named() -> None:
    """Case 79."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TrainerError, match=rf"rank 0 of 2 cannot bind 127\.0\.0\.1:{port}; free the port"):
            rank_of_two(port).bind()


def test_port_zero_takes_a_free_one_and_keeps_it() -> None:
    """Case 79: bound before it is told to anybody, so nobody can take it in between."""
    first, second = rank_of_two(0), rank_of_two(0)
    assert first.bind() == first.bind() > 0
    assert second.bind() != first.bind()


def test_a_lone_rank_opens_no_port() -> None:
    assert not hasattr(open_store(0, 1, "127.0.0.1", 0, 1.0), "port")


def test_a_rank_that_finds_nobody_gives_up_in_time() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = free.getsockname()[1]
        with pytest.raises(TrainerError, match=rf"rank 1 of 2 cannot reach 127\.0\.0\.1:{port}"):
            rank_of_two(port, rank=1).setup()


def test_use_before_setup_is_named_and_shutdown_is_safe() -> None:
    trainer = rank_of_two(0)
    with pytest.raises(TrainerError, match="rank 0 was used before setup"):
        trainer.step(mixed_batch())
    trainer.shutdown()


def test_names_that_differ_from_the_checkpoints_are_refused(tmp_path: Path) -> None:
    """Case 52: an engine would not find such tensors. A tied head in the file is fine."""
    saved = save_tiny_model(tmp_path, tied=False)
    ours = {"model.embed_tokens.weight", "model.norm.weight"}
    with pytest.raises(TrainerError, match=r"spells its tensors differently .* first: lm_head.weight, model.layers.0"):
        check_names(ours, set(), saved)
