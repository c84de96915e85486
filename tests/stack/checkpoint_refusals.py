"""What a lone rank says of checkpoints that are not its own, and of optimizers that cannot be saved for other ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from trainer_builders import mixed_batch, save_tiny_model
from trainer_ranks import SPLIT_EVERYTHING

from agentrl.errors import AgentRLError
from agentrl_trainers.adapter import Adapter
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed import checkpoint
from agentrl_trainers.deepspeed.rank import TrainerRank
from agentrl_trainers.deepspeed.trainer import DeepSpeedTrainer
from agentrl_trainers.model import load_policy


class FactoredMoments(torch.optim.Optimizer):
    """Keeps a state of half the size of each parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rows"] = torch.zeros(parameter.numel() // 2 + 1)


def refusals(rank: int, world_size: int, ports: Any, model_dir: Path, root: Path) -> dict[str, str]:
    """What was wrong -> what was said."""
    life = TrainerRank(rank, world_size, "127.0.0.1", 0, str(model_dir), TrainerConfig(), 1)
    life.setup()
    saved = root / "saved"
    checkpoint.save(trainer_of(model_dir), saved, 1)
    other = save_tiny_model(root / "other", tied=False)
    found = {
        "no state": said(lambda: checkpoint.load(trainer_of(model_dir), root / "nothing")),
        "other optimizer": said(lambda: checkpoint.load(trainer_of(model_dir, optimizer="sgd"), saved)),
        "no critic": said(lambda: checkpoint.load(trainer_of(model_dir, critic={"enabled": True}), saved)),
        "other model": said(lambda: checkpoint.load(trainer_of(other), saved)),
    }
    adapted = root / "adapted"
    checkpoint.save(trainer_of(model_dir, lora={"rank": 2}), adapted, 1)
    elsewhere = save_tiny_model(root / "elsewhere", seed=1)
    found |= {
        "other alpha": said(lambda: checkpoint.load(trainer_of(model_dir, lora={"rank": 2, "alpha": 2.0}), adapted)),
        "other base": said(lambda: checkpoint.load(trainer_of(elsewhere, lora={"rank": 2}), adapted)),
        "same adapter": said(lambda: checkpoint.load(trainer_of(model_dir, lora={"rank": 2}), adapted)),
    }
    factored = trainer_of(model_dir, factory=lambda model, config: FactoredMoments(model.parameters()))
    factored.step(mixed_batch())
    found["odd state"] = said(lambda: checkpoint.save(factored, root / "odd", 1))
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps(state | {"format": 2}))
    found["other format"] = said(lambda: checkpoint.load(trainer_of(model_dir), saved))
    (saved / "state.json").write_text(json.dumps(state))
    (saved / "policy-00001.safetensors").write_bytes(b"\0" * 100)
    found["broken file"] = said(lambda: checkpoint.load(trainer_of(model_dir), saved))
    life.shutdown()
    return found


def trainer_of(model_dir: Path, factory: Any = None, **config: Any) -> DeepSpeedTrainer:
    settings = TrainerConfig.model_validate({**SPLIT_EVERYTHING, **config})
    model = load_policy(model_dir, logit_chunk=settings.logit_chunk_tokens)
    if settings.lora.rank:
        Adapter(model.lm, settings.lora, seed=1)
    given = {} if factory is None else {"optimizer": factory}
    return DeepSpeedTrainer(model, settings, 1, model_path=model_dir, **given)


def said(work: Callable[[], object]) -> str:
    try:
        work()
    except AgentRLError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
