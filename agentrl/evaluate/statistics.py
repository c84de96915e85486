"""From rewards to figures. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean, stdev

from agentrl.evaluate.records import EpisodeResult, EvaluationSummary, Interval, TaskResult

_Z = NormalDist().inv_cdf(0.975)


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """The chance that at least one of k samples succeeds, unbiased, from `successes` of n `samples`.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, "Evaluating Large Language Models Trained on Code"). Raises
    ValueError when k is more than n.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples of a task, there are {samples}")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def clustered_interval(task_means: Sequence[float]) -> Interval:
    """Mean over tasks with the 95 % interval of independent tasks, normal approximation.

    The samples of one task are not independent, so the task is the unit (Miller 2024, "Adding Error Bars to Evals").
    One task says nothing of others.
    """
    mean = fmean(task_means)
    if len(task_means) == 1:
        return Interval(mean, None, None)
    half = _Z * stdev(task_means) / math.sqrt(len(task_means))
    return Interval(mean, mean - half, mean + half)


def share_interval(shares: Sequence[float]) -> Interval:
    """The same for shares in [0, 1], which stays inside and is not empty where all tasks agree.

    Wilson's score interval (1927) with the tasks as trials; for shares between 0 and 1 it is on the wide side.
    """
    n, mean = len(shares), fmean(shares)
    centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n**2))
    return Interval(mean, max(0.0, centre - half), min(1.0, centre + half))


def by_task(episodes: Iterable[EpisodeResult], success_reward: float) -> list[TaskResult]:
    """In the order in which the tasks first appear."""
    grouped: dict[str, list[EpisodeResult]] = {}
    for episode in episodes:
        grouped.setdefault(episode.task_id, []).append(episode)
    return [_task(task_id, group, success_reward) for task_id, group in grouped.items()]


def summarise(episodes: Sequence[EpisodeResult], *, success_reward: float, ks: Sequence[int]) -> EvaluationSummary:
    """Episodes without a reward are counted by reason and are in no other figure."""
    tasks = [task for task in by_task(episodes, success_reward) if task.samples]
    scored = [episode for episode in episodes if episode.reward is not None]
    pass_at = {}
    for k in ks:
        enough = [pass_at_k(task.samples, task.successes, k) for task in tasks if task.samples >= k]
        if enough:
            pass_at[k] = fmean(enough)
    return EvaluationSummary(
        tasks=len(tasks),
        episodes=len(scored),
        missing=dict(Counter(_why(episode) for episode in episodes if episode.reward is None)),
        reward=clustered_interval([task.mean_reward for task in tasks if task.mean_reward is not None])
        if tasks
        else None,
        success=share_interval([task.successes / task.samples for task in tasks]) if tasks else None,
        pass_at=pass_at,
        turns=fmean(episode.turns for episode in scored) if scored else 0.0,
    )


def _why(episode: EpisodeResult) -> str:
    """An episode that the policy ended was not scored: by its environment, or a service or function."""
    return "no_reward" if episode.stop_reason.by_policy else str(episode.stop_reason)


def _task(task_id: str, episodes: Sequence[EpisodeResult], success_reward: float) -> TaskResult:
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    return TaskResult(
        task_id=task_id,
        samples=len(rewards),
        missing=len(episodes) - len(rewards),
        successes=sum(reward >= success_reward for reward in rewards),
        mean_reward=fmean(rewards) if rewards else None,
        stop_reasons=dict(Counter(str(episode.stop_reason) for episode in episodes)),
    )
