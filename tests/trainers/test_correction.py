"""Corrections by hand: proximal logprobs over behaviour logprobs of 0, so that a log ratio is the proximal one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError
from token_builders import sampled

from agentrl_trainers.algorithms.correction import correct
from agentrl_trainers.algorithms.sampled import SampledTokens
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.settings.objective import CorrectionConfig


def tokens(ratios: Sequence[float], **units: Any) -> SampledTokens:
    return sampled(
        [0.0] * len(ratios), advantages=[1.0] * len(ratios), proximal=[math.log(ratio) for ratio in ratios], **units
    )


def weights(ratios: Sequence[float], values: dict[str, Any], **units: Any) -> list[float]:
    return correct(tokens(ratios, **units), CorrectionConfig.model_validate(values)).weight_N.tolist()


RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("mode", "expected", "outside"),
    [
        ("mask", [0.0, 1.0, 1.0, 1.0, 0.0], [True, False, False, False, True]),
        ("weighted_mask", [0.0, 0.5, 1.0, 2.0, 0.0], [True, False, False, False, True]),
        ("clip", [0.4, 0.5, 1.0, 2.0, 2.5], [True, False, False, False, True]),
        ("truncate", [0.25, 0.5, 1.0, 2.0, 2.5], [False, False, False, False, True]),
    ],
)
def test_each_mode_at_token_level(mode: str, expected: list[float], outside: list[bool]) -> None:
    config = CorrectionConfig.model_validate({"mode": mode, "low": 0.4, "high": 2.5})
    found = correct(tokens(RATIOS), config)
    assert found.weight_N.tolist() == pytest.approx(expected)
    assert found.outside_N.tolist() == outside


def test_off_weighs_every_token_alike() -> None:
    found = correct(tokens(RATIOS), CorrectionConfig())
    assert (found.weight_N.tolist(), found.outside_N.tolist()) == ([1.0] * 5, [False] * 5)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [2.0, 2.0, 0.5, 3.0, 0.5]),
        ("call", [4.0, 4.0, 0.5, 1.5, 1.5]),  # row 0: 2 * 2, then 0.5; row 1: 3 * 0.5
        ("sequence", [2.0, 2.0, 2.0, 1.5, 1.5]),  # 2 * 2 * 0.5
        ("geometric", [2 ** (1 / 3)] * 3 + [math.sqrt(1.5)] * 2),
    ],
)
def test_each_level_takes_the_ratio_over_its_unit(level: str, expected: list[float]) -> None:
    units = {"rows": [0, 0, 0, 1, 1], "calls": [0, 0, 1, 2, 2]}
    values = {"mode": "clip", "level": level, "low": 0.01, "high": 100.0}
    assert weights((2.0, 2.0, 0.5, 3.0, 0.5), values, **units) == pytest.approx(expected)


def test_bounds_themselves_are_inside() -> None:
    assert weights((1.0,), {"mode": "mask", "low": 1.0, "high": 2.0}) == [1.0]
    assert weights((1.0,), {"mode": "mask", "low": 0.5, "high": 1.0}) == [1.0]


def test_a_ratio_too_large_for_a_float_is_bounded_or_masked() -> None:
    far = {"proximal": [800.0], "behaviour": [-800.0]}
    one = sampled([0.0], advantages=[1.0], **far)  # type: ignore[arg-type]
    for mode, weight in (("truncate", 2.0), ("clip", 2.0), ("mask", 0.0), ("weighted_mask", 0.0)):
        assert correct(one, CorrectionConfig.model_validate({"mode": mode})).weight_N.tolist() == [weight]


def test_no_tokens_have_no_weights() -> None:
    for level in ("token", "call", "sequence", "geometric"):
        assert weights((), {"mode": "mask", "level": level}) == []


def test_weights_carry_no_gradient() -> None:
    config = CorrectionConfig(mode="truncate")
    live = sampled([-1.0], advantages=[1.0])
    live = SampledTokens(**{**vars(live), "proximal_N": live.logprobs_N})
    assert not correct(live, config).weight_N.requires_grad


class TestPresets:
    @pytest.mark.parametrize(
        ("preset", "level", "mode", "bounds"),
        [
            ("none", "token", "off", None),
            ("tis", "token", "truncate", (None, 2.0)),
            ("icepop", "token", "weighted_mask", (0.5, 5.0)),
            ("mis", "sequence", "weighted_mask", (0.0, 2.0)),
            ("sequence_mask", "sequence", "mask", (0.5, 2.0)),
            ("geometric_mask", "geometric", "mask", (0.999, 1.001)),
        ],
    )
    def test_has_the_published_bounds(self, preset: str, level: str, mode: str, bounds: Any) -> None:
        config = CorrectionConfig.model_validate({"preset": preset})
        assert (config.level, config.mode) == (level, mode)
        if bounds:
            assert bounds[0] in (None, config.low)
            assert config.high == bounds[1]

    def test_keys_beside_it_win(self) -> None:
        config = CorrectionConfig.model_validate({"preset": "icepop", "mode": "mask", "high": 3.0})
        assert (config.level, config.mode, config.low, config.high) == ("token", "mask", 0.5, 3.0)

    def test_a_resolved_config_read_again_is_the_same(self) -> None:
        config = CorrectionConfig.model_validate({"preset": "mis", "high": 4.0})
        assert CorrectionConfig.model_validate(config.model_dump()) == config

    def test_truncated_importance_sampling_by_hand(self) -> None:
        assert weights((0.25, 1.0, 3.0), {"preset": "tis"}) == pytest.approx([0.25, 1.0, 2.0])

    def test_icepop_by_hand(self) -> None:
        assert weights((0.4, 0.6, 4.0, 6.0), {"preset": "icepop"}) == pytest.approx([0.0, 0.6, 4.0, 0.0])

    def test_masked_importance_sampling_by_hand(self) -> None:
        """Row 0 has 1.5 * 1.2 = 1.8, row 1 has 3 * 1 = 3 > 2."""
        found = weights((1.5, 1.2, 3.0, 1.0), {"preset": "mis"}, rows=[0, 0, 1, 1])
        assert found == pytest.approx([1.8, 1.8, 0.0, 0.0])

    def test_a_sequence_mask_has_no_weight_inside(self) -> None:
        assert weights((1.5, 1.2, 3.0), {"preset": "sequence_mask"}, rows=[0, 0, 1]) == [1.0, 1.0, 0.0]

    def test_a_geometric_mask_does_not_tighten_with_length(self) -> None:
        """1.0005 a token over 2,000 tokens is a product of 2.7, and still 1.0005 in the mean."""
        assert weights([1.0005] * 2000, {"preset": "geometric_mask"}) == [1.0] * 2000
        assert weights([1.0005] * 2000, {"preset": "sequence_mask"}) == [0.0] * 2000
        assert weights([1.002], {"preset": "geometric_mask"}) == [0.0]

    def test_bounds_out_of_order_are_refused(self) -> None:
        with pytest.raises(ValidationError, match=r"low = 0.999 is not below high = 0.5"):
            CorrectionConfig.model_validate({"preset": "geometric_mask", "high": 0.5})


class TestTogetherWithALoss:
    """Decision 0019: nothing is corrected twice."""

    @pytest.mark.parametrize("mode", ["weighted_mask", "clip", "truncate"])
    def test_weights_beside_the_behaviours_own_ratio_are_refused_with_the_fix(self, mode: str) -> None:
        with pytest.raises(ValidationError, match=r"set loss.old_policy = 'proximal', or correction.mode = 'mask'"):
            TrainerConfig.model_validate({"correction": {"mode": mode}})
        TrainerConfig.model_validate({"correction": {"mode": mode}, "loss": {"old_policy": "proximal"}})

    @pytest.mark.parametrize("preset", ["tis", "icepop", "mis"])
    def test_so_are_presets_that_weigh(self, preset: str) -> None:
        with pytest.raises(ValidationError, match="old_policy"):
            TrainerConfig.model_validate({"correction": {"preset": preset}})
        TrainerConfig.model_validate({"correction": {"preset": preset, "mode": "mask"}})

    def test_decoupled_ppo_weighs_by_itself(self) -> None:
        loss = {"name": "decoupled_ppo", "old_policy": "proximal"}
        with pytest.raises(ValidationError, match=r"loss.name = 'ppo_clip' with loss.old_policy = 'proximal'"):
            TrainerConfig.model_validate({"correction": {"preset": "tis"}, "loss": loss})
        TrainerConfig.model_validate({"correction": {"preset": "sequence_mask"}, "loss": loss})

    def test_reinforce_has_no_ratio_of_its_own(self) -> None:
        TrainerConfig.model_validate({"correction": {"preset": "mis"}, "loss": {"name": "reinforce"}})

    @pytest.mark.parametrize("loss", ["ppo_clip", "dual_clip", "gspo", "cispo", "decoupled_ppo", "reinforce"])
    def test_masks_go_with_every_loss(self, loss: str) -> None:
        TrainerConfig.model_validate({"correction": {"preset": "sequence_mask"}, "loss": {"name": loss}})
