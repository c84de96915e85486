"""What can be wrong with a run is found here, before its first process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrl import plugins
from agentrl.assets import resolve_model
from agentrl.config import RunConfig
from agentrl.engine.launch import listening_socket
from agentrl.env import registry
from agentrl.env.tool_env import ToolEnv
from agentrl.errors import ConfigError
from agentrl.reward.scorer import Scorer
from agentrl.rollout.worker import probe
from agentrl.types import Task


def check(config: RunConfig, *, services: bool = True) -> tuple[Path, list[Task]]:
    """The model's directory and the held-out tasks. `services`: whether reward services have to be up by now.

    Raises ConfigError; EnvironmentFault when the environment cannot be made or reset; RewardError for a service that
    is not there.
    """
    _no_foreign_engines(config)
    for port in config.engine.ports:
        listening_socket(port).close()
    model = resolve_model(config.model)
    plugins.load("agentrl.advantages", config.algorithm.advantage)
    plugins.load("agentrl.trainer_configs", config.trainer_kind)
    eval_tasks = _held_out_tasks(config)
    _somebody_scores(config)
    first = _first_training_task(config)
    asyncio.run(probe(first, config.environment.options, timeout_s=config.rollout.env_timeout_s))
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


def _somebody_scores(config: RunConfig) -> None:
    made = registry.env_class(config.environment.id)
    unscored = isinstance(made, type) and issubclass(made, ToolEnv) and made.score is ToolEnv.score
    if unscored and config.reward.env_weight and not config.reward.services:
        raise ConfigError(
            f"nothing scores {config.environment.id}: its class has no `score` method and reward.services is empty; "
            "write `score`, or name a service and set reward.env_weight = 0"
        )


def _held_out_tasks(config: RunConfig) -> list[Task]:
    environment, count = config.environment, config.evaluation.tasks
    tasks = list(registry.tasks(environment.id, split=environment.eval_split, seed=config.seed, count=count))
    if len(tasks) < count:
        raise ConfigError(
            f"evaluation.tasks = {count}, but split {environment.eval_split!r} of {environment.id} has {len(tasks)}; "
            "ask for at most that many"
        )
    return tasks


def _first_training_task(config: RunConfig) -> Task:
    environment = config.environment
    task = next(registry.task_stream(environment.id, split=environment.train_split, seed=config.seed), None)
    if task is None:
        raise ConfigError(f"split {environment.train_split!r} of {environment.id} has no tasks; give it at least one")
    return task


async def _ask_services(config: RunConfig) -> None:
    scorer = Scorer(config.reward)
    try:
        await scorer.check()
    finally:
        await scorer.close()
