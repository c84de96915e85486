"""Which publisher a run has, and what its engines are started with for it, by `[engine] weight_transfer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentrl.config import RunConfig
from agentrl.engine.launch import ADAPTER, cpu_only
from agentrl.errors import ConfigError
from agentrl.train.colocated import ColocatedTrainer, Sleepers
from agentrl.train.ports import Engines, Stepper, Trainer
from agentrl.train.publish import DirectPublisher, EnginePublisher, GroupPublisher, ToldTrainer, TrainerWeights

DIRECT = ("nccl", "ipc")


def adapter_rank(config: RunConfig) -> int:
    """Of the adapter that engines serve; 0 where they serve the policy as one set of weights."""
    return int(getattr(config.trainer, "adapter_rank", 0))


def adapter_name(config: RunConfig) -> str | None:
    """Of the adapter that the gateway asks engines for."""
    return ADAPTER if adapter_rank(config) else None


def publisher(
    config: RunConfig,
    trainer: Trainer,
    engines: Engines,
    weights: TrainerWeights,
    *,
    connected: Sequence[str],
    connect: Callable[[Sequence[str]], Awaitable[None]],
) -> EnginePublisher:
    """connected: the URLs of the engines that the trainer is connected with, where it sends to them itself."""
    shared: dict[str, Any] = {
        "trainer": trainer,
        "engines": engines,
        "all_tensors": config.engine.sleep_level == 2,  # an engine that sleeps so deeply keeps no tensor
        "weights": weights,
    }
    if config.engine.weight_transfer not in DIRECT:
        return GroupPublisher(**shared)
    return DirectPublisher(**shared, connected=connected, connect=connect)


def stepper(config: RunConfig, trainer: Stepper, engines: Sleepers, weights: TrainerWeights) -> Stepper:
    """What the loop steps with: engines that share the trainer's GPUs sleep meanwhile."""
    told = ToldTrainer(trainer, weights)
    return told if config.engine.sleep_level is None else ColocatedTrainer(told, engines)


def check_transfer(config: RunConfig) -> None:
    """Raises ConfigError for what cannot work, with the fix."""
    transfer = config.engine.weight_transfer
    if adapter_rank(config) and config.engine.sleep_level == 2:
        raise ConfigError(
            "engine.sleep_level = 2 forgets the model, and swaps bring adapters only; set engine.sleep_level = 1, "
            'or trainer.lora.publish = "merged"'
        )
    if transfer not in DIRECT:
        return
    if config.evaluation.replicas:
        raise ConfigError(
            f'evaluation.replicas = {config.evaluation.replicas}, and engine.weight_transfer = "{transfer}" sends each '
            "version to all engines at once, while those of evaluations stay behind; set evaluation.replicas = 0, or "
            'engine.weight_transfer = "shared_memory"'
        )
    if adapter_rank(config):
        raise ConfigError(
            f'engine.weight_transfer = "{transfer}" sends weights, not adapters; set trainer.lora.publish = "merged", '
            'or engine.weight_transfer = "shared_memory"'
        )
    if cpu_only():
        raise ConfigError(
            f'engine.weight_transfer = "{transfer}" goes from GPU to GPU, and the installed vLLM is the one for CPUs; '
            'set engine.weight_transfer = "shared_memory"'
        )
