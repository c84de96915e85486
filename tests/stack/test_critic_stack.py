"""Promise: PPO with a critic gives the weights of a plain script, whatever the layout, the ranks and the ZeRO stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from critic_ranks import STAGES, STEPS, PlainPpo, by_ranks, gradient_with_a_teacher, ppo_batch, ppo_runs
from trainer_builders import mixed_batch, save_tiny_model
from trainer_ranks import run_ranks

from agentrl_trainers.algorithms.mini_batches import mini_batches
from agentrl_trainers.config import TrainerConfig

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def dirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A policy, and another model as its reference."""
    model, reference = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("reference")
    return save_tiny_model(model), save_tiny_model(reference, seed=1)


@pytest.fixture(scope="module")
def plain(dirs: tuple[Path, Path]) -> dict[str, Any]:
    script = PlainPpo(*dirs)
    first = {name: weight.detach().clone().numpy() for name, weight in script.policy.named_parameters()}
    metrics = [script.step(ppo_batch(dirs[0]), number) for number in range(STEPS)]
    policy = {name: weight.detach().numpy() for name, weight in script.policy.named_parameters()}
    critic = {name: weight.detach().numpy() for name, weight in script.critic.named_parameters()}
    critic["score.weight"] = script.head.detach().numpy()
    return {"metrics": metrics, "first": first, "policy": policy, "critic": critic, "beta": script.beta}


@pytest.fixture(scope="module")
def ran(dirs: tuple[Path, Path]) -> dict[int, list[dict[Any, Any]]]:
    """Ranks -> what each of them found."""
    return {ranks: run_ranks(by_ranks, ranks, *dirs) for ranks in (1, 2)}


def apart(ours: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(ours[name] - expected[name]).max()) for name in ours)


def relative_error(ours: np.ndarray, expected: torch.Tensor) -> float:
    return float(np.linalg.norm(ours - expected.numpy()) / np.linalg.norm(expected.numpy()))


everywhere = pytest.mark.parametrize(
    ("ranks", "stage", "way"), [(ranks, *run) for ranks in (1, 2) for run in ppo_runs(ranks)]
)


@everywhere
def test_both_models_have_the_weights_of_the_plain_script(
    plain: Any, ran: Any, ranks: int, stage: int, way: str
) -> None:
    """Three steps of two mini-batches and two epochs, the first for the critic alone; a divergence in the reward."""
    ours = ran[ranks][0][stage, way]
    assert ours["policies"][-1].keys() == plain["policy"].keys()
    assert apart(ours["policies"][-1], plain["policy"]) < 1e-5
    for found in ran[ranks]:
        assert found[stage, way]["critic"].keys() == plain["critic"].keys()
        assert apart(found[stage, way]["critic"], plain["critic"]) < 1e-5


@everywhere
def test_a_step_of_warm_up_leaves_the_policy_as_it_was(plain: Any, ran: Any, ranks: int, stage: int, way: str) -> None:
    policies = ran[ranks][0][stage, way]["policies"]
    assert apart(policies[0], plain["first"]) == 0.0
    assert apart(policies[1], plain["first"]) > 1e-3
    for found in ran[ranks]:
        ours = found[stage, way]
        told = [(one.critic_warmup, one.updates, one.version, one.skipped) for one in ours["metrics"]]
        assert told == [(True, 0, 1, False), (False, 4, 2, False), (False, 4, 3, False)]
        assert [one.learning_rate for one in ours["metrics"]] == [0.0, 3e-3, 3e-3]
        sessions = tuple(f"s{number}" for number in range(7))
        assert [one.untrained_sessions for one in ours["metrics"]] == [sessions, (), ()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_sessions_that_were_in_skipped_updates_alone_are_named_and_the_schedule_goes_by_the_version(
    ran: Any, ranks: int
) -> None:
    """Whatever is in one update with row 0 is skipped. The step from version 2, the third of 4 with 2 of warm-up, has
    1 - 0.9 / 2 of the rate, and its own shuffle, though the trainer made no step before."""
    parts = mini_batches(mixed_batch().rows, count=2, epochs=2, seed=TrainerConfig().seed + 2)
    first, second = (set(part) for part in parts if 0 in part)
    for found in ran[ranks]:
        metrics = found["half skipped"]
        assert (metrics.updates, metrics.skipped_updates, metrics.skipped) == (4, 2, False)
        assert metrics.untrained_sessions == tuple(f"s{index}" for index in sorted(first & second))
        assert metrics.learning_rate == pytest.approx(5.5e-4)


@everywhere
def test_the_logged_numbers_of_the_critic_are_the_scripts(
    plain: Any, ran: Any, ranks: int, stage: int, way: str
) -> None:
    for found in ran[ranks]:
        for ours, expected in zip(found[stage, way]["metrics"], plain["metrics"], strict=True):
            assert {name: getattr(ours, name) for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
            assert ours.critic_grad_norm > 0.0
            assert ours.critic_skipped_updates == 0


@everywhere
def test_the_coefficient_of_the_divergence_follows_its_target(
    plain: Any, ran: Any, ranks: int, stage: int, way: str
) -> None:
    for found in ran[ranks]:
        assert found[stage, way]["state"]["kl_coefficient"] == pytest.approx(plain["beta"], rel=1e-5)
        assert found[stage, way]["metrics"][-1].kl_coefficient != 0.5


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_a_teachers_opinion_trains_as_advantages_would(
    ran: Any, dirs: tuple[Path, Path], ranks: int, stage: int
) -> None:
    expected = gradient_with_a_teacher(*dirs)
    ours = ran[ranks][0]["teacher"][stage]
    assert {name: relative_error(ours[name], expected[name]) for name in expected} == {
        name: pytest.approx(0.0, abs=1e-5) for name in expected
    }


def test_the_scripts_values_are_clipped_and_learn(plain: Any) -> None:
    """Else the equality would say nothing of clipping or of the critic's body."""
    assert plain["metrics"][-1]["value_clip_fraction"] > 0.02
    assert plain["metrics"][-1]["value_loss"] < plain["metrics"][0]["value_loss"]
