"""Settings of the control loop: how far it goes, how stale it may train, when it evaluates and exports."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agentrl.section import Section
from agentrl.train.retention import Retention, Score


class LoopConfig(Section):
    """The size of a step and of the run."""

    steps: int = Field(default=40, ge=1)
    """Optimizer steps; step k produces weights version k."""

    groups_per_step: int = Field(default=8, ge=1)
    """Groups (tasks) that one step trains on."""

    order: Literal["finished", "due", "admitted"] = "finished"
    """Which groups a step trains (docs/scheduling.md): `finished`, those that are whole, the oldest first, so that none
    is waited for; `due`, the same, but one that would be too old afterwards is waited for; `admitted`, strictly those
    that were admitted first."""

    max_groups: int | None = Field(default=None, ge=1)
    """Groups that may be admitted and not yet trained, where (K + 1) * `groups_per_step` are more than wanted."""

    cut_tail: float = Field(default=1.0, gt=0, le=1)
    """In a synchronous run, the share of a step's groups that suffices when the others are late: those go on, and are
    trained in a later step as far as their tokens are fresh by then."""

    tail_patience_s: float = Field(default=10.0, ge=0)
    """With `cut_tail` below 1: seconds that the others are still waited for once enough groups are whole."""

    max_failed_groups: int = Field(default=16, ge=1)
    """Groups in a row that may be dropped for a failure before the run stops and says why."""

    group_timeout_s: float = Field(default=1800.0, gt=0)
    """Longest that the loop waits for the next whole group."""

    step_timeout_s: float = Field(default=1800.0, gt=0)
    """Longest that one trainer call (a step, an export, a weight group) may take."""

    @model_validator(mode="after")
    def _a_step_can_be_filled(self) -> LoopConfig:
        if self.max_groups is not None and self.max_groups < self.groups_per_step:
            raise ValueError(
                f"max_groups = {self.max_groups} is less than groups_per_step = {self.groups_per_step}, so no step "
                "could be filled; raise it or leave it out"
            )
        return self


class StalenessConfig(Section):
    """How old a trained token may be (invariant 8)."""

    max_lag: int = Field(default=1, ge=0)
    """K: no token sampled more than K versions before the version being trained gets gradient. 0 is synchronous."""

    policy: Literal["mask", "drop", "requeue"] = "mask"
    """What happens past the bound: mask the token, drop the whole group, or drop it and do its task again."""


class AlgorithmConfig(Section):
    """From rewards to advantages. The policy loss is the trainer's (`[trainer]`)."""

    advantage: str = "grpo"
    """Advantage estimator: `grpo`, `dr_grpo`, `rloo`, `reinforce`, `reinforce_plus_plus`,
    `reinforce_plus_plus_baseline`, `leave_out_returns`, `gae` (needs `trainer.critic.enabled`), `distillation` (needs
    `trainer.teacher.model`), a name of entry-point group `agentrl.advantages`, `module:function`, or
    `path/to/file.py:function`."""

    zero_variance: Literal["keep", "drop", "refill"] = "keep"
    """Groups without signal (all rewards equal): keep them in the token count with advantage 0, leave their rows out,
    or leave them out and wait for others in their place (DAPO's dynamic sampling)."""

    max_refills: int = Field(default=16, ge=1)
    """Groups without signal that `zero_variance = "refill"` replaces in one step; with more, the step goes on with what
    there is."""

    overlong: Literal["keep", "mask"] = "keep"
    """Episodes that a limit ended (length, tokens, turns, tool calls, context, or the environment's own): train them as
    they are, or give them no gradient (DAPO's overlong filtering). Their rewards count in the group's baseline either
    way."""


class EvaluationConfig(Section):
    """Held-out tasks, through the same gateway, one weight version per evaluation."""

    tasks: int = Field(default=256, ge=0)
    """Held-out tasks per evaluation; 0 turns it off."""

    every: int | None = Field(default=None, ge=1)
    """Evaluate each so many versions too, beside training."""

    replicas: int = Field(default=0, ge=0)
    """Engines that only evaluate, besides `engine.replicas`. Without any, evaluations are on the training engines, and
    the next version waits until they are done."""

    at_start: bool = True
    """Evaluate version 0 before the first step; what cannot be evaluated then is an error."""

    at_end: bool = True
    """Evaluate the last version."""

    success_reward: float = 1.0
    """An episode is a success when its reward is at least this."""

    timeout_s: float = Field(default=1800.0, gt=0)
    """Longest that one evaluation may take. One that takes longer, or fails, is counted, and training goes on."""

    @model_validator(mode="after")
    def _something_is_evaluated(self) -> EvaluationConfig:
        never = not (self.every or self.at_start or self.at_end)
        for key, value in (("every", self.every), ("replicas", self.replicas)):
            if value and (never or not self.tasks):
                why = "tasks = 0" if not self.tasks else "at_start and at_end are false and every is off"
                raise ValueError(f"{key} = {value}, and nothing is evaluated, as {why}; leave it out, or change that")
        return self


class SavesConfig(Section):
    """What is kept of a run under `checkpoints/v<version>`: weights in Hugging Face form, and what training needs."""

    every: int | None = Field(default=None, ge=1)
    """Save each so many steps; the last version is always saved."""

    keep_last: int | None = Field(default=None, ge=1)
    """How many of the highest versions are kept; "off" keeps all. None goes before a newer one is whole."""

    trainer_state: bool = True
    """Save optimizer, schedule and random numbers too, so that training can go on: about three times the weights."""

    @property
    def retention(self) -> Retention:
        return Retention(self.keep_last)


class CheckpointConfig(SavesConfig):
    """What is kept of a run under `checkpoints/v<version>`: weights in Hugging Face form, and what training needs."""

    every: int = Field(default=20, ge=1)
    """Save each so many steps; the last version is always saved. After a death at most so many steps are trained again:
    their batches are kept on the disk until then."""

    keep_last: int | None = Field(default=2, ge=1)
    """How many of the highest versions are kept; "off" keeps all. None goes before a newer one is whole."""

    trainer_state: bool = True
    """Save optimizer, schedule and random numbers too, so that training can go on: about three times the weights.
    Without it a run cannot be resumed, and the death of a trainer rank ends it."""

    on_interrupt_s: float = Field(default=60.0, ge=0)
    """Longest that the first Ctrl-C, SIGTERM or closed terminal waits for the step under way and a checkpoint of it.
    What is not done by then is done again by `--resume`; 0 waits for nothing."""

    keep_best: int = Field(default=0, ge=0)
    """How many of the best are kept besides; needs `keep_last`."""

    best_by: Score = "success"
    """What is best: the share of successes, or the mean reward, in the version's evaluation (`evaluation.every`). Of
    versions without one, which come after all others, in the steps since the checkpoint before."""

    @property
    def retention(self) -> Retention:
        return Retention(self.keep_last, self.keep_best, self.best_by)

    @model_validator(mode="after")
    def _best_of_what_is_deleted(self) -> CheckpointConfig:
        if self.keep_best and self.keep_last is None:
            raise ValueError(
                f"keep_best = {self.keep_best} without keep_last: all are kept anyway; set keep_last, 1 for one"
            )
        return self


class TensorBoardConfig(Section):
    """Event files for TensorBoard."""

    enabled: bool = True
    """Write event files under `tensorboard/` of the run directory."""
