"""One optimizer update through DeepSpeed, the same in every ZeRO stage. What its defaults would do otherwise:

* Each `backward` outside a declared boundary counts as the last one: ZeRO 1 and 2 keep only the last gradient. The
  boundary is declared around every micro-batch.
* Gradients are averaged over the ranks. The losses given here are shares of one sum, so they are scaled back.
* `gradient_clipping` unset is 1.0. It is always set; 0.0 is off.
* ZeRO 0 in float32 neither reports a norm nor skips a step that is not finite, stages 1 to 3 do both. Here all do.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

Loss = Callable[[Any], torch.Tensor]  # the wrapped module -> one micro-batch's share [] of the loss


class Update(NamedTuple):
    """grad_norm: global L2 norm before clipping, inf when not finite. skipped: nothing was changed."""

    grad_norm: float
    skipped: bool


class ZeroEngine:
    """`module` and its optimizer under ZeRO `stage`. All ranks call every method together."""

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        stage: int,
        gradient_clip: float | None,
        dtype: str = "float32",
        keep_below: int = 100_000,
    ) -> None:
        import deepspeed
        from deepspeed.utils import logger

        logger.setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")  # DeepSpeed's own calls
        self.stage, self._clip, self._world = stage, gradient_clip, dist.get_world_size()
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": gradient_clip or 0.0,
            "bf16": {"enabled": dtype == "bfloat16"},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": keep_below},
            "zero_allow_untested_optimizer": True,
        }
        self.engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)

    @property
    def module(self) -> torch.nn.Module:
        return self.engine.module

    @property
    def device(self) -> torch.device:
        return self.engine.device

    def update(self, losses: Sequence[Loss], learning_rate: float) -> Update:
        """Minimise the sum of `losses` over all ranks by one step. Every rank gives equally many, at least one.

        A loss or gradient that is not finite anywhere changes nothing, on any rank.
        """
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        for index, loss_of in enumerate(losses):
            self.engine.set_gradient_accumulation_boundary(index == len(losses) - 1)
            loss = loss_of(self.engine)
            if not torch.isfinite(loss):
                loss = loss * math.nan  # so that the gradient says it too, to all ranks, whatever the stage
            self.engine.backward(loss * self._world)
        return self._step_plain() if self.stage == 0 else self._step_zero()

    def _step_plain(self) -> Update:
        """Without ZeRO every rank holds the whole, reduced gradient."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._clip or math.inf))
        if not math.isfinite(norm):
            self.engine.zero_grad()
            return Update(math.inf, skipped=True)
        self.engine.step()
        return Update(norm, skipped=False)

    def _step_zero(self) -> Update:
        self.engine.step()
        norm = float(self.engine.get_global_grad_norm())
        return Update(norm, skipped=bool(getattr(self.engine.optimizer, "overflow", False)))

    def gathered(self, parameters: Sequence[torch.nn.Parameter]) -> Any:
        """Context manager in which `parameters` have their full values on every rank."""
        if self.stage < 3:
            return nullcontext()
        import deepspeed

        return deepspeed.zero.GatheredParameters(list(parameters))

    def close(self) -> None:
        self.engine.destroy()
