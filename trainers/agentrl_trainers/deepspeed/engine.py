"""One optimizer update through DeepSpeed, the same in every ZeRO stage. What its defaults would do otherwise:

* Each `backward` outside a declared boundary counts as the last one: ZeRO 1 and 2 keep only the last gradient. The
  boundary is declared around every micro-batch.
* Gradients are averaged over the ranks. The losses given here are shares of one sum, so they are scaled back.
* `gradient_clipping` unset is 1.0. It is always set; 0.0 is off.
* ZeRO 0 in float32 neither reports a norm nor skips a step that is not finite, stages 1 to 3 do both. Here all do.
* Under bfloat16 gradients are summed over micro-batches and ranks in bfloat16, where 256 + 1 is 256. Both are float32
  here; stage 1 then takes another optimizer class, which lacks what is used below, so it is refused (config.py).
* Offloading demands DeepSpeed's own optimizer, which is compiled as C++ at the first start. Ours is torch's.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from agentrl_trainers.deepspeed import tensor_parallel
from agentrl_trainers.ema import WeightAverage
from agentrl_trainers.settings.memory import MemoryConfig

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
        skip_above: float | None = None,
        dtype: str = "float32",
        keep_below: int = 100_000,
        memory: MemoryConfig | None = None,
        ema: float | None = None,
        ranks_each: int = 1,
    ) -> None:
        """skip_above: an update whose gradient norm is greater changes nothing, as one that is not finite.

        ema: decay of `average`, the moving average of the weights. ranks_each: share each matrix (tensor_parallel.py).
        """
        import deepspeed
        from deepspeed.utils import logger

        logger.setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")  # DeepSpeed's own calls
        self.stage, self._clip, self._shares = stage, gradient_clip, dist.get_world_size() // ranks_each
        self._largest = skip_above or math.inf
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": gradient_clip if gradient_clip and stage else 0.0,  # without ZeRO it is done here
            "bf16": {"enabled": dtype == "bfloat16"},
            "zero_optimization": _zero_config(stage, keep_below, memory or MemoryConfig()),
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        if dtype == "bfloat16":
            config |= {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
        if ranks_each > 1:
            config["tensor_parallel"] = tensor_parallel.deepspeed_config(ranks_each)
        self.engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        self.average = WeightAverage(module.parameters(), ema) if ema else None
        self._norm = 0.0
        if stage:
            self._watch_norm("_get_norm_groups" if stage == 3 else "scaled_global_norm")

    @property
    def module(self) -> torch.nn.Module:
        return self.engine.module

    @property
    def device(self) -> torch.device:
        return self.engine.device

    def update(self, losses: Sequence[Loss], learning_rate: float) -> Update:
        """Minimise the sum of `losses` over all ranks by one step. Every rank gives equally many, at least one.

        A loss or gradient that is not finite anywhere changes nothing, on any rank; nor does a norm above the bound.
        """
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        for index, loss_of in enumerate(losses):
            self.engine.set_gradient_accumulation_boundary(index == len(losses) - 1)
            loss = loss_of(self.engine)
            if not torch.isfinite(loss):
                loss = loss * math.nan  # so that the gradient says it too, to all ranks, whatever the stage
            self.engine.backward(loss * self._shares)
        update = self._step_plain() if self.stage == 0 else self._step_zero()
        if self.average is not None and not update.skipped:
            self.average.update()
        return update

    def _step_plain(self) -> Update:
        """Without ZeRO every rank holds the whole, reduced gradient."""
        norm = tensor_parallel.total_norm(self.module)
        if not math.isfinite(norm) or norm > self._largest:
            self.engine.zero_grad()
            return Update(norm if math.isfinite(norm) else math.inf, skipped=True)
        torch.nn.utils.clip_grads_with_norm_(self.module.parameters(), self._clip or math.inf, torch.tensor(norm))
        self.engine.step()
        return Update(norm, skipped=False)

    def _step_zero(self) -> Update:
        self._norm = math.inf
        self.engine.step()
        return Update(self._norm, skipped=bool(self.engine.optimizer.overflow))

    def _watch_norm(self, method: str) -> None:
        """Keep the norm that DeepSpeed computes before it clips, and let one above the bound count as an overflow.

        Its step then goes the way of a step that is not finite: on all ranks, with gradients and buffers cleared.
        """
        from deepspeed.runtime.utils import combine_grad_norm_groups, is_invalid_grad_norm

        optimizer = self.engine.optimizer
        compute = getattr(optimizer, method)

        def watched() -> Any:
            found = compute()
            norm = combine_grad_norm_groups(found) if isinstance(found, list) else found
            if not is_invalid_grad_norm(norm):
                self._norm = float(norm)
            if self._norm <= self._largest:
                return found
            return [torch.tensor(math.inf)] if isinstance(found, list) else torch.tensor(math.inf)

        setattr(optimizer, method, watched)

    def gathered(self, parameters: Sequence[torch.nn.Parameter]) -> Any:
        """Context manager in which `parameters` have their full values on every rank."""
        if self.stage < 3:
            return tensor_parallel.gathered(parameters)
        import deepspeed

        return deepspeed.zero.GatheredParameters(list(parameters))

    def close(self) -> None:
        self.engine.destroy()


def _zero_config(stage: int, keep_below: int, memory: MemoryConfig) -> dict[str, Any]:
    config: dict[str, Any] = {"stage": stage, "stage3_param_persistence_threshold": keep_below}
    if memory.offload_optimizer != "none":
        config["offload_optimizer"] = {"device": memory.offload_optimizer}
    if memory.offload_weights != "none":
        config["offload_param"] = {"device": memory.offload_weights}
    return config
