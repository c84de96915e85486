"""What the stack tests of checkpoints run on real ranks: three steps, saved; the next ones unbroken, resumed, cold."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from trainer_builders import row
from trainer_ranks import SPLIT_EVERYTHING, meet

from agentrl.types import Batch
from agentrl_trainers.adapter import Adapter
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed import checkpoint
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.deepspeed.rank import TrainerRank
from agentrl_trainers.deepspeed.states import Values, states_of
from agentrl_trainers.deepspeed.trainer import DeepSpeedTrainer
from agentrl_trainers.metrics import StepMetrics
from agentrl_trainers.model import load_policy

STAGES = (0, 2, 3)
MOVES = ((0, 3), (2, 3), (3, 2), (3, 3))  # from ZeRO stage, to ZeRO stage
SAVED_AT = 3
STEPS = 8
EVERYTHING_THAT_HAS_A_STATE: dict[str, Any] = {
    **SPLIT_EVERYTHING,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,  # two parameter groups
    "kl": {"coefficient": 0.1, "target": 0.01, "horizon": 50},
    "critic": {"enabled": True, "learning_rate": 3e-2},
    "ema": 0.9,
    "mini_batches": 2,  # drawn anew each step
    "micro_batch_tokens": 32,
}
KINDS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16", "zero_stage": 2},
    "bfloat16, in pieces": {"dtype": "bfloat16", "zero_stage": 3, "ema": 0.9},
    "optimizer on the host": {"zero_stage": 2, "memory": {"offload_optimizer": "cpu"}},
    "all on the host": {"zero_stage": 3, "memory": {"offload_optimizer": "cpu", "offload_weights": "cpu"}},
    "small ones whole": {"zero_stage": 3, "zero3_keep_below": 100_000},
    "muon": {"optimizer": "muon"},  # other states for matrices than for the rest
    "adapters": {"zero_stage": 3, "lora": {"rank": 2}},
}


class Continued(NamedTuple):
    """Steps 4 and 5 of a trainer."""

    metrics: list[StepMetrics]
    weights: dict[str, dict[str, np.ndarray]]  # engine -> "weight" or "average" of a parameter -> value after step 4
    drawn: list[float]  # from torch, Python and NumPy, before step 4


def replayed(version: int) -> Batch:
    """The rollouts of one step: another batch each time, the same whenever it is asked for."""
    rng = random.Random(version)
    rows = [
        row(length, seed=100 * version + index, advantage=rng.gauss(0, 1))
        for index, length in enumerate((21, 4, 12, 17, 9))
    ]
    for one in rows:
        one.rewards = [0.0] * (len(one.token_ids) - 1) + [rng.random()]
    return Batch(version=version, rows=rows)


def trainer_of(model_dir: Path, stage: int) -> DeepSpeedTrainer:
    return trainer_with(TrainerConfig.model_validate({"zero_stage": stage, **EVERYTHING_THAT_HAS_A_STATE}), model_dir)


def go_on(trainer: DeepSpeedTrainer) -> Continued:
    drawn = [float(torch.rand(())), random.random(), float(np.random.rand())]
    fourth = trainer.step(replayed(SAVED_AT))
    weights = {
        engine: {
            f"{key} of {name}": values[key].numpy()
            for name, values in everything_of(zero).items()
            for key in ("weight", "average")
            if key in values
        }
        for engine, zero in trainer.engines().items()
    }
    return Continued([fourth, trainer.step(replayed(SAVED_AT + 1))], weights, drawn)


def everything_of(zero: ZeroEngine) -> dict[str, Values]:
    states = states_of(zero)
    return {name: states.read(name) for name in states.parameters}


def with_weights_alone(trainer: DeepSpeedTrainer, saved: dict[str, dict[str, Values]]) -> DeepSpeedTrainer:
    """What a trainer is that restored its weights and nothing else."""
    for name, zero in trainer.engines().items():
        states = states_of(zero)
        for key, values in saved[name].items():
            states.write(key, {"weight": values["weight"]})
        states.refresh()
    return trainer


def life_of_a_rank(
    rank: int, world_size: int, ports: Any, model_dir: Path, root: Path, saves: bool, others: int | None
) -> dict[str, dict[Any, Any]]:
    """By ZeRO stage "unbroken", "resumed" and "cold" on these ranks, if it `saves`; of two, "kinds" by kind of trainer.

    "moved" by (A, B): what `others` ranks saved at stage A, taken up here at stage B.
    """
    config = TrainerConfig.model_validate({"ranks": world_size})
    life = TrainerRank(rank, world_size, "127.0.0.1", 0, str(model_dir), config, STEPS)
    life.setup(meet(life, rank, world_size, ports))
    found: dict[str, dict[Any, Any]] = {"unbroken": {}, "resumed": {}, "cold": {}, "moved": {}, "kinds": {}}
    for kind, settings in KINDS.items() if world_size == 2 else ():
        found["kinds"][kind] = _differences(model_dir, root / f"{world_size}-{kind}", settings)
    for stage in STAGES if saves else ():
        directory = root / f"{world_size}-{stage}"
        unbroken = trainer_of(model_dir, stage)
        for version in range(SAVED_AT):
            unbroken.step(replayed(version))
        _scatter_random_numbers(rank)
        checkpoint.save(unbroken, directory, SAVED_AT)
        saved = {name: everything_of(zero) for name, zero in unbroken.engines().items()}
        found["unbroken"][stage] = go_on(unbroken)
        resumed = trainer_of(model_dir, stage)
        assert checkpoint.load(resumed, directory) == SAVED_AT
        found["resumed"][stage] = go_on(resumed)
        found["cold"][stage] = go_on(with_weights_alone(trainer_of(model_dir, stage), saved))
    for before, after in MOVES if others else ():
        moved = trainer_of(model_dir, after)
        checkpoint.load(moved, root / f"{others}-{before}")
        found["moved"][before, after] = go_on(moved)
    life.shutdown()
    return found


def _differences(model_dir: Path, directory: Path, settings: dict[str, Any]) -> tuple[list[str], float]:
    """What is not restored bit for bit, and by how much the loss of the next step is off."""
    config = TrainerConfig.model_validate({**SPLIT_EVERYTHING, "learning_rate": 1e-2, **settings})
    saved, loaded = trainer_with(config, model_dir), trainer_with(config, model_dir)
    for version in range(2):
        saved.step(replayed(version))
    checkpoint.save(saved, directory, 2)
    checkpoint.load(loaded, directory)
    theirs, ours = everything_of(saved.policy.zero), everything_of(loaded.policy.zero)
    odd = [
        f"{key} of {name}"
        for name, values in theirs.items()
        for key, value in values.items()
        if not torch.equal(value, ours[name][key]) or value.dtype != ours[name][key].dtype
    ]
    return odd, abs(saved.step(replayed(2)).loss - loaded.step(replayed(2)).loss)


def trainer_with(config: TrainerConfig, model_dir: Path) -> DeepSpeedTrainer:
    model = load_policy(model_dir, dtype=config.dtype, logit_chunk=config.logit_chunk_tokens)
    if config.lora.rank:
        Adapter(model.lm, config.lora, seed=1)
    return DeepSpeedTrainer(model, config, STEPS, model_path=model_dir)


def _scatter_random_numbers(seed: int) -> None:
    """Away from where a new process begins, and on each rank elsewhere."""
    torch.manual_seed(seed + 1)
    random.seed(seed + 2)
    np.random.seed(seed + 3)
