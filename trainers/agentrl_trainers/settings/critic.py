"""The critic of PPO and generalised advantage estimation. Torch-free."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from agentrl.section import Section


class CriticConfig(Section):
    """`[trainer.critic]`: a value model beside the policy. It is needed by `algorithm.advantage = "gae"`."""

    enabled: bool = False
    """Train a critic; advantages then come from its values, not from the group."""

    model: str = "policy"
    """Weights that it starts from: those of the policy with a new head, whose values are 0, or a local directory in
    Hugging Face form; that of a reward model keeps its head."""

    learning_rate: float = Field(default=1e-3, gt=0.0)
    """Peak of its schedule, which has the shape of the policy's; so has everything else of its optimizer."""

    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount of one sampled token."""

    lam: float = Field(default=0.95, ge=0.0, le=1.0)
    """Lambda of generalised advantage estimation."""

    value_clip: float | None = Field(default=0.2, gt=0.0)
    """New values may move this far from the old ones within a step; "off" does not clip."""

    warmup_steps: int = Field(default=0, ge=0)
    """Steps at the start that train the critic alone; the policy's schedule begins after them."""

    whiten: bool = True
    """Give the advantages of a step mean 0 and variance 1 over its trained tokens."""

    @model_validator(mode="after")
    def _read(self) -> Self:
        others = [key for key in type(self).model_fields if key != "enabled"]
        if not self.enabled and (unread := self.changed(*others)):
            raise ValueError(
                f"{unread}: not read with critic.enabled = false; set critic.enabled = true, or leave it out"
            )
        return self
