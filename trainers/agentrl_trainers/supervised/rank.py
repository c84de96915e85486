"""Trainer ranks of runs that learn from data: as those of reinforcement learning, with another step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.types import Batch, TrainRow
from agentrl_trainers.deepspeed.frozen import FrozenModel
from agentrl_trainers.deepspeed.rank import TrainerRank
from agentrl_trainers.deepspeed.weights import WeightSource
from agentrl_trainers.model import PolicyModel
from agentrl_trainers.step_tokens import StepTokens
from agentrl_trainers.supervised.config import (
    DpoTrainerConfig,
    RewardModelTrainerConfig,
    SftTrainerConfig,
    SupervisedTrainerConfig,
)
from agentrl_trainers.supervised.objectives import DirectPreference, Imitation, Preference, SupervisedObjective
from agentrl_trainers.supervised.reward_model import RewardModelSource
from agentrl_trainers.supervised.trainer import SupervisedTrainer
from agentrl_trainers.value_model import ValueModel, load_value_model


class SupervisedRank(TrainerRank):
    """See TrainerRank. `step` takes a batch of labelled rows, `evaluate` one that is not trained on."""

    _config: SupervisedTrainerConfig

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """See SupervisedTrainer.evaluate."""
        metrics: dict[str, float] = self._ready(self._trainer).evaluate(batch)
        return metrics

    def _trainer_of(self, model: PolicyModel | ValueModel) -> SupervisedTrainer:
        return SupervisedTrainer(
            model,
            self._config,
            self._total_steps,
            self._objective(),
            model_path=self._model_path,
            optimizer=self._optimizer,
        )

    def _objective(self) -> SupervisedObjective:
        raise NotImplementedError


class SftRank(SupervisedRank):
    """`kind = "sft"`."""

    _config: SftTrainerConfig

    def _objective(self) -> SupervisedObjective:
        return Imitation(self._config.aggregation)


class DpoRank(SupervisedRank):
    """`kind = "dpo"`: rows in pairs, chosen and rejected, whose recorded logprobs are those of `reference`."""

    _config: DpoTrainerConfig
    _reference: FrozenModel | None = None

    def step(self, batch: Batch) -> Any:
        """See SupervisedTrainer.step. A reference model of its own is let go of first."""
        self._reference = None
        return super().step(batch)

    def reference(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Logprobs `[rows][N]` of the trained tokens of each row under the reference model.

        The reference is asked before the first step: then the weights are the initial ones, so that no second model
        has to be held for it. A model of its own is loaded by the first call and held until the first step.
        """
        policy = self._ready(self._trainer).policy
        tokens = StepTokens(rows)
        if self._config.dpo.reference == "initial":
            found_A = policy.token_logprobs(tokens)
        else:
            if self._reference is None:
                path, vocab_size = Path(self._config.dpo.reference), policy.model_config.vocab_size
                self._reference = FrozenModel(path, self._config, policy.layout, vocab_size=vocab_size)
            found_A = self._reference.logprobs(tokens)
        return [found_A[span].tolist() for span in tokens.spans]

    def _objective(self) -> SupervisedObjective:
        return DirectPreference(self._config.dpo)


class RewardModelRank(SupervisedRank):
    """`kind = "reward_model"`: rows in pairs, chosen and rejected, of which the last token alone is trained."""

    _config: RewardModelTrainerConfig

    def _objective(self) -> SupervisedObjective:
        return Preference()

    def _models(self) -> tuple[Any, WeightSource]:
        model = load_value_model(self._model_path, dtype=self._config.dtype, attention=self._config.attention)
        trainer = self._trainer_of(model)
        min_bytes = self._config.weight_group_min_bytes
        return trainer, RewardModelSource(trainer.policy.zero, model.lm, self._model_path, min_bytes=min_bytes)

    def scores(self, rows: Sequence[TrainRow]) -> list[float]:
        """Of each row, whose last token alone is trained."""
        policy = self._ready(self._trainer).policy
        tokens = StepTokens(rows)
        found_A = policy.layout.of_all_tokens(
            tokens,
            lambda batch: policy.zero.engine(
                batch.input_ids, batch.position_ids, batch.predictors_N + 1, batch.segment_lengths
            ),
        )
        return [float(score) for score in found_A]
