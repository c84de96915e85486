"""The `[trainer]` table of runs that learn from data: that of reinforcement learning without what only that reads."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_serializer, model_validator
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from agentrl.section import Section
from agentrl_trainers.config import TrainerConfig

REINFORCEMENT = (
    "loss",
    "aggregation",
    "correction",
    "kl",
    "critic",
    "teacher",
    "entropy_bonus",
    "epochs",
    "mini_batches",
)
"""Keys of `TrainerConfig` that are about sampled tokens and rewards."""


class SupervisedTrainerConfig(TrainerConfig):
    """Keys of reinforcement learning are refused, and left out of the resolved configuration."""

    unread: ClassVar[tuple[str, ...]] = REINFORCEMENT
    kind: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_read(cls, values: Any) -> Any:
        found = [key for key in cls.unread if isinstance(values, dict) and key in values]
        if found:
            hint = "; passes over the data are loop.epochs" if "epochs" in found else ""
            raise ValueError(
                f'{", ".join(found)}: read by kind = "rl" only, and this run is of kind = "{cls.kind}"; '
                f"leave it out{hint}"
            )
        return values

    @model_serializer(mode="wrap")
    def _as_it_may_be_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if key not in self.unread}


class SftTrainerConfig(SupervisedTrainerConfig):
    """`[trainer]` of `kind = "sft"`; `aggregation` says what a token of a batch weighs."""

    unread: ClassVar[tuple[str, ...]] = tuple(key for key in REINFORCEMENT if key != "aggregation")
    kind: ClassVar[str] = "sft"


class RewardModelTrainerConfig(SupervisedTrainerConfig):
    """`[trainer]` of `kind = "reward_model"`."""

    kind: ClassVar[str] = "reward_model"

    @model_validator(mode="after")
    def _whole_weights(self) -> Self:
        if self.lora.rank:
            raise ValueError(
                f"lora.rank = {self.lora.rank}: a reward model's weights are trained themselves, for its head is new; "
                "leave out lora"
            )
        return self


class DpoConfig(Section):
    """`[trainer.dpo]`: direct preference optimisation."""

    beta: float = Field(default=0.1, gt=0.0)
    """How much a nat of difference to the reference counts; the smaller, the further the policy may go."""

    label_smoothing: float = Field(default=0.0, ge=0.0, lt=0.5)
    """The share of pairs that are taken to be the wrong way round."""

    reference: str = "initial"
    """The reference model: the weights that the run began with, or a local directory in Hugging Face form."""


class DpoTrainerConfig(SupervisedTrainerConfig):
    """`[trainer]` of `kind = "dpo"`."""

    kind: ClassVar[str] = "dpo"

    dpo: DpoConfig = DpoConfig()
