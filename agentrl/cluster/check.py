"""What can be wrong with a run is found here, before its first process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrl import plugins
from agentrl.assets import resolve_model
from agentrl.cluster.joined import check_cluster
from agentrl.cluster.model_paths import for_ranks
from agentrl.cluster.transfer import check_transfer
from agentrl.config import RunConfig
from agentrl.env import registry
from agentrl.env.command import Command
from agentrl.env.tool_env import ToolEnv
from agentrl.errors import ConfigError
from agentrl.reward.scorer import Scorer
from agentrl.rollout.worker import probe
from agentrl.train.advantage import judges_groups, needs_siblings
from agentrl.train.environment import Source
from agentrl.train.tasks import held_out_tasks, stream_of
from agentrl.types import Task


def check(config: RunConfig, *, services: bool = True) -> tuple[Path, list[Task]]:
    """The model's directory and the held-out tasks. `services`: whether reward services have to be up by now.

    Raises ConfigError; EnvironmentFault when the environment cannot be made or reset; RewardError for a service that
    is not there.
    """
    _no_foreign_engines(config)
    check_transfer(config)
    check_cluster(config)
    model = resolve_model(config.model)
    for_ranks(config.trainer)
    _advantages_have_something_to_go_by(config)
    for service in config.reward.services:
        if service.start is not None:
            plugins.load("agentrl.rewards", service.start)
    plugins.load("agentrl.trainer_configs", config.trainer_kind)
    eval_tasks = _held_out_tasks(config)
    _somebody_scores(config)
    for source in config.environment.sources:
        asyncio.run(probe(_first_training_task(source, config.seed), source.options, config.rollout))
    if services:
        asyncio.run(_ask_services(config))
    return model, eval_tasks


def _no_foreign_engines(config: RunConfig) -> None:
    for key, urls in (("engine.urls", config.engine.urls), ("gateway.engine_urls", config.gateway.engine_urls)):
        if urls:
            raise ConfigError(
                f"{key} = {list(urls)} is for `agentrl serve`; `agentrl train` starts its engines itself, for they "
                "read their weights from this machine's memory. Leave it out and set engine.replicas"
            )


def _advantages_have_something_to_go_by(config: RunConfig) -> None:
    algorithm = config.algorithm
    estimate = plugins.load("agentrl.advantages", algorithm.advantage)
    if config.rollout.group_size == 1 and needs_siblings(estimate):
        raise ConfigError(
            f"rollout.group_size = 1, and algorithm.advantage = {algorithm.advantage!r} compares a group's "
            "episodes, so every advantage would be 0; set group_size to 2 or more, or algorithm.advantage to "
            '"reinforce_plus_plus"'
        )
    if algorithm.zero_variance != "keep" and not judges_groups(estimate):
        raise ConfigError(
            f"algorithm.zero_variance = {algorithm.zero_variance!r} would leave out nothing: to algorithm.advantage = "
            f'{algorithm.advantage!r} no group is without signal by itself; set zero_variance = "keep"'
        )


def _somebody_scores(config: RunConfig) -> None:
    """Where the environment gives no reward, one that counts it would be missing in every episode."""
    if config.reward.env_weight == 0:
        return
    for source in config.environment.sources:
        _source_scores(config, source)


def _source_scores(config: RunConfig, source: Source) -> None:
    made = registry.env_class(source.id)
    if made is Command and not source.options.get("grade"):
        raise ConfigError(
            "nothing grades the command: environment.options.grade is not set; set it to a function or a command, "
            f"or {_others_score(config)}"
        )
    if isinstance(made, type) and issubclass(made, ToolEnv) and not _gives_rewards(made):
        raise ConfigError(
            f"nothing scores {source.id}: its class has no `score` method; write `score`, or {_others_score(config)}"
        )


def _gives_rewards(made: type[ToolEnv]) -> bool:
    own = made.score is not ToolEnv.score or made.step is not ToolEnv.step
    return own or getattr(made, "score_group", None) is not None


def _others_score(config: RunConfig) -> str:
    parts = [part.name for part in config.reward.parts]
    return (
        f"set reward.env_weight = 0, as {', '.join(parts)} scores"
        if parts
        else ("name a service or a function under [reward] and set reward.env_weight = 0")
    )


def _held_out_tasks(config: RunConfig) -> list[Task]:
    environment, count = config.environment, config.evaluation.tasks
    tasks = held_out_tasks(environment, config.seed, count)
    if len(tasks) < count:
        raise ConfigError(
            f"evaluation.tasks = {count}, but split {environment.eval_split!r} of {environment.id} has {len(tasks)}; "
            "ask for at most that many"
        )
    return tasks


def _first_training_task(source: Source, seed: int) -> Task:
    task = next(stream_of(source, seed), None)
    if task is None:
        raise ConfigError(f"split {source.train_split!r} of {source.id} has no tasks; give it at least one")
    return task


async def _ask_services(config: RunConfig) -> None:
    running = tuple(service for service in config.reward.services if service.start is None)
    scorer = Scorer(config.reward.model_copy(update={"services": running}))
    try:
        await scorer.check()
    finally:
        await scorer.close()
