"""Settings of runs that learn from data: where it lies, what of it is trained, how often. Torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from agentrl.section import Section

Role = Literal["assistant", "user", "tool", "system"]


class DataConfig(Section):
    """Where the rows come from, and how many are held out."""

    train: Path | None = None
    """A JSONL file, one conversation or pair a line (docs/supervised.md has their forms)."""

    eval: Path | None = None
    """A JSONL file that is not trained on; its loss is in the metrics."""

    eval_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the prompts of `train` (of a run: of its tasks) that is held out, when there is no `eval` file."""

    max_tokens: int | None = Field(default=None, ge=2)
    """Longest row; unset is the model's own context."""

    @model_validator(mode="after")
    def _held_out_once(self) -> Self:
        if self.eval is not None and self.eval_fraction:
            raise ValueError("eval and eval_fraction both say what is held out; give one of them")
        return self


class TranscriptsConfig(DataConfig):
    """Conversations, from a file or from what a run has sampled."""

    from_run: Path | None = None
    """A run directory, whose recorded rows are trained: exactly the ids that were sampled, none tokenised again."""

    min_reward: float | None = None
    """Trajectories of `from_run` with a smaller reward, or none, are left out; "off" takes all."""

    roles: tuple[Role, ...] = Field(default=("assistant",), min_length=1)
    """Whose words are trained, each with the token that ends its turn. All others are context."""

    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further variables of the chat template, such as `enable_thinking = false`; what serves the model has to have the
    same."""

    too_long: Literal["drop", "cut", "refuse"] = "drop"
    """A row above `max_tokens` is left out, loses its end, or ends the command."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.train is None) == (self.from_run is None):
            raise ValueError("a run of kind sft learns from `train`, a file, or from `from_run`; give exactly one")
        if self.from_run is None and self.min_reward is not None:
            raise ValueError("min_reward chooses among the trajectories of from_run, which is not set")
        if self.from_run is not None and self.roles != ("assistant",):
            raise ValueError("the rows of from_run have their own masks, of what was sampled; leave out roles")
        if self.from_run is not None and self.template_kwargs:
            raise ValueError("the rows of from_run are not rendered again; leave out template_kwargs")
        return self


class PairsConfig(DataConfig):
    """Two answers to one prompt, one chosen over the other."""

    too_long: Literal["drop", "refuse"] = "drop"
    """A pair with a row above `max_tokens` is left out, or ends the command. Half an answer is no answer."""

    @model_validator(mode="after")
    def _there_is_a_file(self) -> Self:
        if self.train is None:
            raise ValueError("train is required: a JSONL file of pairs")
        return self


class AnswersConfig(PairsConfig):
    """Two answers to one prompt, one chosen over the other, as a policy says them."""

    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further variables of the chat template, such as `enable_thinking = false`; what serves the model has to have the
    same."""


class EpochsConfig(Section):
    """The size of a step and of the run."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the training data, each in an order of its own."""

    steps: int | None = Field(default=None, ge=1)
    """Stop after so many optimizer steps, wherever in the data that is; "off" makes all epochs."""

    batch_size: int = Field(default=32, ge=1)
    """Rows (pairs, where there are such) of one optimizer step. The last step of a pass has what is left."""

    eval_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on what is held out; there is one before the first and after the last step anyway."""

    step_timeout_s: float = Field(default=1800.0, gt=0)
    """Longest that one trainer call (a step, an evaluation, an export) may take."""
