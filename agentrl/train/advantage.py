"""What an advantage estimator is given and gives back. It is a function in one of two forms:

    rewards_G -> advantages_G          the simple form: one group at a time, one number an attempt
    groups    -> one list a group, of one list an attempt, of one advantage a call
                                       the general form, marked `@step_estimator`: all groups of a step at once

Axes: G attempts of a group (one role's, where there are several), C calls of an attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import TrainerError

CallAdvantages = list[float] | None
"""[C], or None: this attempt is not trained."""

AdvantageEstimator = Callable[..., Any]
"""In either form; `over_a_step` makes a `StepEstimator` of both."""

StepEstimator = Callable[[Sequence[Sequence["Attempt"]]], list[list[CallAdvantages]]]


@dataclass(frozen=True)
class Attempt:
    """One trajectory as an estimator sees it. Made from a scored group, taken by an estimator."""

    reward: float | None  # all that it earned; None is missing
    call_rewards: Sequence[float] = field(default=(0.0,))  # [C] what of it was earned at each call; 0.0 where unknown
    call_tokens: Sequence[int] = field(default=(1,))  # [C] tokens of each call that this step trains

    @property
    def num_calls(self) -> int:
        return len(self.call_rewards)

    def of_all_calls(self, advantage: float | None) -> CallAdvantages:
        """The same advantage for every call."""
        return None if advantage is None else [advantage] * self.num_calls


@dataclass(frozen=True)
class EstimatorTraits:
    """What the driver has to know of an estimator besides its numbers."""

    zeros_are_flat: bool = True
    """Whether a group for which it finds 0 throughout, given that group alone, carries no signal. Not so where groups
    are compared with each other, and where the trainer makes the advantages."""

    by_trainer: bool = False
    """Whether its zeros only hold the place of advantages that the trainer makes, from values or a teacher."""


def step_estimator(*, zeros_are_flat: bool = True, by_trainer: bool = False) -> Callable[[StepEstimator], Any]:
    """Marks a function as one in the general form."""
    traits = EstimatorTraits(zeros_are_flat=zeros_are_flat, by_trainer=by_trainer)
    return lambda function: _marked(function, traits)


def _marked(function: StepEstimator, traits: EstimatorTraits) -> StepEstimator:
    function.traits = traits  # type: ignore[attr-defined]
    return function


def traits_of(estimate: AdvantageEstimator) -> EstimatorTraits | None:
    """None for the simple form."""
    return getattr(estimate, "traits", None)


def over_a_step(estimate: AdvantageEstimator) -> StepEstimator:
    """The estimator over all groups of a step, its answers checked.

    What it returns raises TrainerError where the function gives another number of values than it was asked for, one
    that is not finite, or an advantage for an attempt that has no reward; and for a reward that is not finite.
    """
    traits = traits_of(estimate)
    found = _lifted(estimate) if traits is None else estimate

    def checked(groups: Sequence[Sequence[Attempt]]) -> list[list[CallAdvantages]]:
        _check_rewards(groups)
        advantages = found(groups)
        _check_sizes("groups", len(advantages), len(groups))
        for of_group, group in zip(advantages, groups, strict=True):
            _check_sizes("rewards", len(of_group), len(group))
            for of_attempt, attempt in zip(of_group, group, strict=True):
                _check_attempt(of_attempt, attempt)
        return advantages

    return _marked(checked, traits or EstimatorTraits())


def needs_siblings(estimate: AdvantageEstimator) -> bool:
    """Whether it finds 0 for an attempt that is alone, whatever its reward: then groups of one teach nothing."""
    if not judges_groups(estimate):
        return False
    estimator = over_a_step(estimate)
    return all(estimator([[Attempt(reward)]]) == [[[0.0]]] for reward in (1.0, 0.5, -1.0))


def judges_groups(estimate: AdvantageEstimator) -> bool:
    """Whether a group for which it finds 0 throughout, given that group alone, carries no signal."""
    traits = traits_of(estimate)
    return traits is None or traits.zeros_are_flat


def _lifted(estimate: Callable[[list[float | None]], Sequence[float | None]]) -> StepEstimator:
    def of_groups(groups: Sequence[Sequence[Attempt]]) -> list[list[CallAdvantages]]:
        found = []
        for group in groups:
            advantages_G = estimate([attempt.reward for attempt in group])
            _check_sizes("rewards", len(advantages_G), len(group))
            found.append([one.of_all_calls(value) for one, value in zip(group, advantages_G, strict=True)])
        return found

    return of_groups


def _check_rewards(groups: Sequence[Sequence[Attempt]]) -> None:
    for group in groups:
        for index, attempt in enumerate(group):
            values = [attempt.reward or 0.0, *attempt.call_rewards]
            if not all(map(math.isfinite, values)):
                raise TrainerError(
                    f"attempt {index} of a group of {len(group)} has the reward {attempt.reward} and its calls have "
                    f"{list(attempt.call_rewards)}; each is a finite number, and a missing one is None"
                )


def _check_sizes(what: str, given: int, asked: int) -> None:
    if given != asked:
        raise TrainerError(f"the advantage estimator gave {given} values for {asked} {what}; it gives one for each")


def _check_attempt(advantages_C: CallAdvantages, attempt: Attempt) -> None:
    if advantages_C is None:
        return
    if attempt.reward is None:
        raise TrainerError(f"the advantage estimator gave {advantages_C} where the reward is missing; give None")
    _check_sizes("calls", len(advantages_C), attempt.num_calls)
    if not all(map(math.isfinite, advantages_C)):
        raise TrainerError(f"the advantage estimator gave {advantages_C} for the reward {attempt.reward}; not finite")
