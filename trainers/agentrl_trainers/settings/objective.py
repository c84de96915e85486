"""What is minimised: the policy loss, its correction for stale samples, the divergence, the mean. Torch-free."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentrl import plugins
from agentrl.section import Section

BUILT_IN_LOSSES = ("ppo_clip", "dual_clip", "gspo", "cispo", "decoupled_ppo", "reinforce")
PROXIMAL_LOSSES = ("decoupled_ppo",)
"""Their ratio is to the proximal policy, and they weigh by the behaviour policy themselves."""
PLAIN_LOSSES = ("reinforce",)
"""They have no importance ratio, so a correction's weight is the only one."""

CORRECTION_PRESETS: dict[str, dict[str, Any]] = {
    "none": {"mode": "off"},
    "tis": {"level": "token", "mode": "truncate", "high": 2.0},
    "icepop": {"level": "token", "mode": "weighted_mask", "low": 0.5, "high": 5.0},
    "mis": {"level": "sequence", "mode": "weighted_mask", "low": 0.0, "high": 2.0},
    "sequence_mask": {"level": "sequence", "mode": "mask", "low": 0.5, "high": 2.0},
    "geometric_mask": {"level": "geometric", "mode": "mask", "low": 0.999, "high": 1.001},
}
"""Bounds as published; sources are in `algorithms/correction.py`."""


class LossConfig(Section):
    """`[trainer.loss]`: the policy loss of one token."""

    name: str = "ppo_clip"
    """`ppo_clip`, `dual_clip`, `gspo`, `cispo`, `decoupled_ppo`, `reinforce`, a name of entry-point group
    `agentrl.policy_losses`, `module:function`, or `path/to/file.py:function`."""

    old_policy: Literal["behaviour", "proximal"] = "behaviour"
    """Denominator of the importance ratio: the logprobs recorded when the token was sampled, or the trainer's own at
    the start of the step. `decoupled_ppo` always takes the proximal ones, `reinforce` has no ratio."""

    clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """Importance ratios below `1 - clip_low` get no gradient where the advantage is negative. `cispo` bounds the
    token's weight instead: 1 leaves out the lower bound, as its authors do. `gspo`'s authors take 3e-4."""

    clip_high: float = Field(default=0.2, ge=0.0)
    """Importance ratios above `1 + clip_high` get no gradient where the advantage is positive; in `cispo` the upper
    bound of the weight. `gspo`'s authors take 4e-4."""

    dual_clip: float = Field(default=3.0, gt=1.0)
    """`dual_clip` bounds the loss of a negative advantage at this many times the advantage."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Read by a loss of your own; ours read none."""

    @field_validator("name")
    @classmethod
    def _found_by_the_ranks(cls, name: str) -> str:
        return plugins.later("agentrl.policy_losses", name)

    @model_validator(mode="after")
    def _options_are_read(self) -> Self:
        if self.options and self.name in BUILT_IN_LOSSES:
            raise ValueError(f"loss.options = {self.options} is read by losses of your own only, not by {self.name!r}")
        return self


class CorrectionConfig(Section):
    """`[trainer.correction]`: the weight of a token by how likely the trainer finds what the engine sampled."""

    preset: Literal["none", "tis", "icepop", "mis", "sequence_mask", "geometric_mask"] | None = None
    """Sets level, mode and bounds to those of a published recipe; keys given beside it win."""

    level: Literal["token", "call", "sequence", "geometric"] = "token"
    """Over what the ratio is taken: a token, the product over a call or over the row, or the row's geometric mean."""

    mode: Literal["off", "mask", "weighted_mask", "clip", "truncate"] = "off"
    """`mask`: weight 1 inside the bounds, 0 outside. The others weigh by the ratio: `weighted_mask` with 0 outside,
    `clip` to both bounds, `truncate` to the upper one."""

    low: float = Field(default=0.0, ge=0.0)
    """Lower bound of the ratio; `truncate` does not read it."""

    high: float = Field(default=2.0, gt=0.0)
    """Upper bound of the ratio."""

    @model_validator(mode="before")
    @classmethod
    def _preset_fills_in(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {**CORRECTION_PRESETS.get(str(values.get("preset")), {}), **values}

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g} is not below high = {self.high:g}")
        return self

    @model_validator(mode="after")
    def _read(self) -> Self:
        unread = "" if self.mode != "off" else self.changed("level", "low", "high")
        if unread and self.preset in (None, "none"):  # another preset's own values may stand beside mode = "off"
            raise ValueError(f"{unread}: not read with correction.mode = 'off'; set correction.mode, or leave them out")
        return self

    @property
    def weighs(self) -> bool:
        """Whether tokens get other weights than 0 and 1."""
        return self.mode not in ("off", "mask")


def corrected_twice(loss: LossConfig, correction: CorrectionConfig) -> str | None:
    """What to change where both would weigh a token by how likely the trainer finds it; None where they go together."""
    if not correction.weighs or loss.name in PLAIN_LOSSES:
        return None
    what = f"correction.mode = {correction.mode!r} weighs a token by the trainer's ratio to the engine"
    if loss.name in PROXIMAL_LOSSES:
        return (
            f"{what}, and loss.name = {loss.name!r} does so already; set correction.mode = 'mask' or 'off', "
            "or loss.name = 'ppo_clip' with loss.old_policy = 'proximal'"
        )
    if loss.old_policy == "behaviour":
        return (
            f"{what}, and with loss.old_policy = 'behaviour' the loss's own ratio does so already; "
            "set loss.old_policy = 'proximal', or correction.mode = 'mask'"
        )
    return None


class KlConfig(Section):
    """`[trainer.kl]`: the pull towards a reference model. A coefficient of 0 loads none."""

    coefficient: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence; where the controller is adaptive, its first value."""

    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of KL(policy || reference) of one sampled token."""

    where: Literal["loss", "reward"] = "loss"
    """Added to the loss, or taken from the reward of each token. Without a critic that is taken from the token's
    advantage: its own divergence and that of all sampled tokens after it in its row."""

    target: float | None = Field(default=None, gt=0.0)
    """Nats a token at which an adaptive controller holds the divergence, by at most a fifth more or less coefficient
    a step; "off" keeps the coefficient fixed."""

    horizon: int = Field(default=10_000, ge=1)
    """Trained tokens over which the adaptive controller corrects its error."""

    reference: str = "initial"
    """The reference model: the weights that the run began with, or a local directory in Hugging Face form. Each rank
    holds a whole copy, whatever `zero_stage` is."""

    @model_validator(mode="after")
    def _pulls(self) -> Self:
        if self.coefficient and self.where == "loss" and self.estimator == "k1":
            raise ValueError(
                "estimator = 'k1' in the loss pulls nowhere: its gradient knows nothing of the reference; "
                "set estimator = 'k2' or 'k3', or where = 'reward'"
            )
        return self

    @model_validator(mode="after")
    def _read(self) -> Self:
        unread = "" if self.coefficient else self.changed("estimator", "where", "target", "horizon", "reference")
        if unread:
            raise ValueError(f"{unread}: not read with kl.coefficient = 0; set kl.coefficient above 0, or leave it out")
        return self


class AggregationConfig(Section):
    """`[trainer.aggregation]`: from the losses of tokens to the loss of a batch."""

    name: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """Mean over all trained tokens; mean over rows of each row's mean; or each row's sum over a constant length."""

    length: int = Field(default=1024, ge=1)
    """Tokens that `constant` divides each row's sum by: the longest answer that a row may have."""
