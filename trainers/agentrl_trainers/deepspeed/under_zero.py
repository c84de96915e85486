"""A model that is trained, put under ZeRO: the policy and the critic alike."""

from __future__ import annotations

from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.deepspeed.layout import StepLayout
from agentrl_trainers.model import PolicyModel, prepare
from agentrl_trainers.optimizers import OptimizerFactory
from agentrl_trainers.value_model import ValueModel


def under_zero(
    model: PolicyModel | ValueModel,
    config: TrainerConfig,
    optimizer: OptimizerFactory,
    *,
    ema: float | None = None,
    ranks_each: int = 1,
) -> tuple[ZeroEngine, StepLayout]:
    """The engine around `model`, and how its rows are laid out; the model's ranks share tokens as the layout says.

    ema, ranks_each: see ZeroEngine. Raises TrainerError when the model cannot be trained with this config.
    """
    prepare(model.lm, config)
    zero = ZeroEngine(
        model,
        optimizer(model, config),
        stage=config.zero_stage,
        gradient_clip=config.gradient_clip,
        skip_above=config.skip_gradient_norm,
        dtype=config.dtype,
        keep_below=config.zero3_keep_below,
        memory=config.memory,
        ema=ema,
        ranks_each=ranks_each,
    )
    layout = StepLayout(config, model.lm.config.hidden_size, zero.device)
    model.token_share = layout.split.tokens
    return zero, layout
