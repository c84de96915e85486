"""Promise: one step of the whole trainer is one step of a plain PyTorch script on the same batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from objective_cases import CASES
from step_equality import RUNS, TOKENS_SHARED, batch_of, by_plain_script, by_trainer_ranks
from trainer_builders import save_tiny_model
from trainer_ranks import run_ranks

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def plain(dirs: tuple[Path, Path]) -> dict[str, dict[str, Any]]:
    batch = batch_of(dirs[0])
    return {name: by_plain_script(case, *dirs, batch) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def dirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A policy, and another model as its reference."""
    model, reference = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("reference")
    return save_tiny_model(model), save_tiny_model(reference, seed=1)


@pytest.fixture(scope="module")
def ran(dirs: tuple[Path, Path]) -> dict[int, list[dict[Any, dict[str, Any]]]]:
    """Ranks -> what each of them found."""
    return {ranks: run_ranks(by_trainer_ranks, ranks, *dirs, batch_of(dirs[0])) for ranks in (1, 2)}


def assert_weights(ours: dict[str, Any], expected: dict[str, Any]) -> None:
    assert ours.keys() == expected.keys()
    assert {key: float(np.abs(ours[key] - expected[key]).max()) for key in expected} == {
        key: pytest.approx(0.0, abs=1e-5) for key in expected
    }


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("name", "stage"), RUNS)
def test_a_step_leaves_the_weights_of_the_plain_script(plain: Any, ran: Any, name: str, stage: int, ranks: int) -> None:
    assert_weights(ran[ranks][0][name, stage]["weights"], plain[name]["weights"])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("name", "stage"), RUNS)
def test_its_loss_and_gradient_norm_are_the_scripts(plain: Any, ran: Any, name: str, stage: int, ranks: int) -> None:
    """AdamW's first step hardly depends on the scale of the gradient; these do."""
    for found in ran[ranks]:
        assert found[name, stage]["loss"] == pytest.approx(plain[name]["loss"], rel=1e-5, abs=1e-6)
        assert found[name, stage]["norm"] == pytest.approx(plain[name]["norm"], rel=1e-5)


@pytest.mark.parametrize(("name", "stage"), TOKENS_SHARED)
def test_ranks_that_share_a_rows_tokens_take_the_same_step(plain: Any, ran: Any, name: str, stage: int) -> None:
    """What is taken over a row is taken over all of it, wherever its tokens are."""
    assert_weights(ran[2][0][name, stage, "shared"]["weights"], plain[name]["weights"])
    for found in ran[2]:
        assert found[name, stage, "shared"]["loss"] == pytest.approx(plain[name]["loss"], rel=1e-5, abs=1e-6)
        assert found[name, stage, "shared"]["norm"] == pytest.approx(plain[name]["norm"], rel=1e-5)


def test_every_objective_makes_a_step_of_its_own(dirs: tuple[Path, Path], plain: Any) -> None:
    """Else the equality above would hold for a trainer that reads none of the keys."""

    def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
        moved = max(float(np.abs(one["weights"][name] - other["weights"][name]).max()) for name in one["weights"])
        return max(moved, abs(one["norm"] - other["norm"]))

    pairs = {(one, other): apart(plain[one], plain[other]) for one in plain for other in plain if one < other}
    assert {pair: distance for pair, distance in pairs.items() if distance < 1e-4} == {}
