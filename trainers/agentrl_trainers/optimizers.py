"""The optimizers that a run can name. One is a function `(model, TrainerConfig) -> torch.optim.Optimizer`.

Under ZeRO 1 to 3 an optimizer sees flat shares of the parameters, so it must treat every element by itself. Learning
rates are set before every update, in all parameter groups, from the run's schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from agentrl import plugins
from agentrl.errors import ConfigError
from agentrl_trainers.config import TrainerConfig

OptimizerFactory = Callable[[torch.nn.Module, TrainerConfig], torch.optim.Optimizer]


def by_config(model: torch.nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """The one that `config.optimizer` names. Raises ConfigError when there is none, or it cannot train such a model."""
    factory: OptimizerFactory = plugins.load("agentrl.optimizers", config.optimizer)
    return factory(model, config)


def adamw(model: torch.nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """AdamW; weight decay on matrices only. Loshchilov and Hutter, arXiv:1711.05101."""
    return _adamw(_trained(model), config)


def sgd(model: torch.nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """Plain gradient descent without momentum: `w - rate * gradient`, weight decay on matrices only."""
    groups = _decayed(_trained(model), config.weight_decay)
    return torch.optim.SGD(groups, lr=config.learning_rate, weight_decay=config.weight_decay)


def muon(model: torch.nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """Muon for the layers' matrices, AdamW for embeddings, head, norms and biases, both at the same rate.

    Muon orthogonalises a whole matrix's momentum; its step is scaled to the size that AdamW's would have (`0.2
    sqrt(max(rows, columns))`), so that one rate fits both. Sources: Jordan et al., "Muon", 2024; Liu et al.,
    arXiv:2502.16982. Raises ConfigError under ZeRO 1 to 3, where no rank has a whole matrix of the gradient.
    """
    if config.zero_stage:
        raise ConfigError(
            f"trainer.optimizer = 'muon' needs whole matrices, and trainer.zero_stage = {config.zero_stage} gives each "
            "rank a flat share of them; set zero_stage = 0, or optimizer = 'adamw'"
        )
    looked_up = {
        id(parameter)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) or name.rpartition(".")[2] in ("lm_head", "head", "score")
        for parameter in module.parameters()
    }
    trained = _trained(model)
    matrices = [parameter for parameter in trained if parameter.dim() == 2 and id(parameter) not in looked_up]
    inner = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in trained if id(parameter) not in inner]
    if not matrices:
        raise ConfigError("trainer.optimizer = 'muon' found no matrix to train; set optimizer = 'adamw'")
    of_matrices = torch.optim.Muon(
        matrices, lr=config.learning_rate, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return Joined([of_matrices, *([_adamw(rest, config)] if rest else [])])


class Joined(torch.optim.Optimizer):
    """Several optimizers, of disjoint parameters, as one, whose groups and states are all of theirs."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        groups = [group for part in parts for group in part.param_groups]
        super().__init__([{"params": group["params"]} for group in groups], {})
        self.param_groups = groups
        self._parts = [(part, len(part.param_groups)) for part in parts]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        start = 0
        for part, count in self._parts:  # handed over each time: loading a state replaces both
            part.state, part.param_groups = self.state, self.param_groups[start : start + count]
            part.step()
            start += count


def _trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _adamw(parameters: list[torch.nn.Parameter], config: TrainerConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        _decayed(parameters, config.weight_decay),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
    )


def _decayed(parameters: list[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """One parameter group without decay; with it a second one for vectors, which are not decayed."""
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
    if not weight_decay:
        return [{"params": matrices + vectors}]
    return [{"params": part, **extra} for part, extra in ((matrices, {}), (vectors, {"weight_decay": 0.0})) if part]
