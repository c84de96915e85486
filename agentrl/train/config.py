"""Settings of the control loop: how far it goes, how stale it may train, when it evaluates and exports."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agentrl.section import Section


class LoopConfig(Section):
    """The size of a step and of the run."""

    steps: int = Field(default=40, ge=1)
    """Optimizer steps; step k produces weights version k."""

    groups_per_step: int = Field(default=8, ge=1)
    """Groups (tasks) that one step trains on."""

    max_failed_groups: int = Field(default=16, ge=1)
    """Groups in a row that may be dropped for a failure before the run stops and says why."""

    group_timeout_s: float = Field(default=1800.0, gt=0)
    """Longest that the loop waits for the next whole group."""

    step_timeout_s: float = Field(default=1800.0, gt=0)
    """Longest that one trainer call (a step, an export, a weight group) may take."""


class StalenessConfig(Section):
    """How old a trained token may be (invariant 8)."""

    max_lag: int = Field(default=1, ge=0)
    """K: no token sampled more than K versions before the version being trained gets gradient. 0 is synchronous."""

    policy: Literal["mask", "drop", "requeue"] = "mask"
    """What happens past the bound: mask the token, drop the whole group, or drop it and do its task again."""


class AlgorithmConfig(Section):
    """From rewards to advantages. The policy loss is the trainer's (`[trainer]`)."""

    advantage: str = "grpo"
    """Advantage estimator: a name of entry-point group `agentrl.advantages`, or `module:function`."""

    zero_variance: Literal["keep", "drop"] = "keep"
    """Groups whose rewards are all equal: keep them in the token count with advantage 0, or leave their rows out."""


class EvaluationConfig(Section):
    """Held-out tasks, through the same gateway, one weight version per evaluation."""

    tasks: int = Field(default=256, ge=0)
    """Held-out tasks per evaluation; 0 turns it off."""

    at_start: bool = True
    """Evaluate version 0 before the first step."""

    at_end: bool = True
    """Evaluate the last version."""

    success_reward: float = 1.0
    """An episode is a success when its reward is at least this."""

    timeout_s: float = Field(default=1800.0, gt=0)
    """Longest that one evaluation may take."""


class CheckpointConfig(Section):
    """Hugging Face exports under `checkpoints/v<version>`."""

    every: int | None = Field(default=None, ge=1)
    """Export each so many steps; the last version is always exported."""


class TensorBoardConfig(Section):
    """Event files for TensorBoard."""

    enabled: bool = True
    """Write event files under `tensorboard/` of the run directory."""


class EnvironmentConfig(Section):
    """Where tasks come from."""

    id: str
    """A gymnasium id (`agentrl/Calculator-v0`), `module:Class`, or `path/to/file.py:Class`."""

    options: dict[str, object] = Field(default_factory=dict)
    """Keyword arguments of the environment's constructor."""

    train_split: str = "train"
    """The split that training tasks are drawn from."""

    eval_split: str = "eval"
    """The split of the held-out tasks."""

    @model_validator(mode="after")
    def _splits_differ(self) -> EnvironmentConfig:
        if self.train_split == self.eval_split:
            raise ValueError(
                f"train_split and eval_split are both {self.eval_split!r}; held-out tasks need a split of their own"
            )
        return self
