"""The `[trainer]` table of a run. Torch-free: the driver validates it before anything starts."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentrl import plugins
from agentrl.section import Section
from agentrl_trainers.settings.adapter import LoraConfig
from agentrl_trainers.settings.critic import CriticConfig
from agentrl_trainers.settings.memory import MemoryConfig
from agentrl_trainers.settings.objective import (
    AggregationConfig,
    CorrectionConfig,
    KlConfig,
    LossConfig,
    corrected_twice,
)
from agentrl_trainers.settings.teacher import TeacherConfig

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class TrainerConfig(Section):
    """Everything a trainer rank needs besides the model path, its rank and the number of steps of the run."""

    learning_rate: float = Field(5e-4, ge=0.0)
    """Peak of the schedule. 0 trains nothing and is allowed: it shows the train/engine logprob mismatch alone."""

    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""

    adam_eps: float = Field(1e-8, gt=0.0)
    """AdamW's term in the denominator."""

    weight_decay: float = Field(0.0, ge=0.0)
    """AdamW's decoupled decay, applied to matrices only: vectors (norms, biases) are never decayed."""

    warmup_steps: int = Field(3, ge=0)
    """Steps of the run that ramp the rate linearly up to its peak; the first already has a rate above 0. The schedule
    counts steps, not updates: all `epochs * mini_batches` updates of a step have the same rate."""

    decay: Literal["linear", "cosine", "constant"] = "linear"
    """Shape of the rate between the peak and the last step of the run."""

    final_lr_fraction: float = Field(0.1, ge=0.0, le=1.0)
    """Rate of the last step as a fraction of the peak. Not read when `decay` is "constant"."""

    gradient_clip: float | None = Field(1.0, gt=0.0)
    """Bound on the global L2 norm of the gradient. None is off; TOML has no null, so a file says "off"."""

    optimizer: str = "adamw"
    """`adamw`; `sgd`, without momentum; `muon` for the layers' matrices with AdamW for the rest, which needs
    `zero_stage = 0`; a name of entry-point group `agentrl.optimizers`; or your own `(model, config) -> Optimizer` as
    `module:function` or `path/to/file.py:function`."""

    skip_gradient_norm: float | None = Field(None, gt=0.0)
    """An update whose gradient norm (before clipping) is above this changes nothing on any rank and is counted; "off"
    skips none."""

    ema: float | None = Field(None, gt=0.0, lt=1.0)
    """Decay of an exponential moving average of the weights, in float32, taken after every update and exported beside
    them; "off" keeps none."""

    epochs: int = Field(1, ge=1)
    """Passes over the rows of a step."""

    mini_batches: int = Field(1, ge=1)
    """Updates of one pass: the rows are split into so many parts, whole trajectories each."""

    entropy_bonus: float = Field(0.0, ge=0.0)
    """Weight of the policy's entropy in the loss, subtracted, so that it explores."""

    loss: LossConfig = LossConfig()
    aggregation: AggregationConfig = AggregationConfig()
    correction: CorrectionConfig = CorrectionConfig()
    kl: KlConfig = KlConfig()
    critic: CriticConfig = CriticConfig()
    teacher: TeacherConfig = TeacherConfig()
    lora: LoraConfig = LoraConfig()
    memory: MemoryConfig = MemoryConfig()

    ranks: int = Field(1, ge=1)
    """Trainer processes, one a GPU (or one a share of the CPU cores). Each passes its share of the rows, but for those
    of one `sequence_parallel` group, which pass the same rows."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    """What is split over the ranks: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too."""

    zero3_keep_below: int = Field(100_000, ge=0)
    """With `zero_stage = 3`, parameters with fewer elements stay whole on every rank."""

    packing: bool = True
    """Pack rows end to end up to `micro_batch_tokens`; otherwise pad `micro_batch_rows` rows to their longest."""

    micro_batch_tokens: int = Field(2048, ge=1)
    """Packing budget of one forward pass, in tokens. A longer row is never cut: it gets a pass of its own."""

    micro_batch_rows: int = Field(8, ge=1)
    """Rows of one forward pass when `packing` is off."""

    logit_chunk_tokens: int = Field(1024, ge=1)
    """Trained tokens whose fp32 logits exist at the same time; more are recomputed in the backward pass."""

    attention: Literal["segments", "sdpa", "flash_attention_2"] = "segments"
    """`segments` runs each packed sequence by itself, with no mask; `sdpa` masks a whole pack (any model, slower);
    `flash_attention_2` needs a GPU and the flash-attn package."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations. Logits, values, loss, sums of gradients and optimizer states are float32 in both;
    `bfloat16` needs `zero_stage` 2 or 3."""

    weight_group_min_bytes: int = Field(1 << 20, ge=1)
    """Layers are published together until a group has this many bytes; a group is what is gathered at one time."""

    threads: int = Field(1, ge=1)
    """CPU threads of one rank."""

    collective_timeout_s: float = Field(600.0, gt=0.0)
    """How long a rank waits for the others before it fails."""

    tensor_parallel: int = Field(1, ge=1)
    """Ranks that share each layer's matrices (DeepSpeed AutoTP), in Llama- and Qwen-type models with `zero_stage` 0, 1
    or 2. Divides `ranks`, and the model's numbers of heads and the width of its MLP."""

    sequence_parallel: int = Field(1, ge=1)
    """Ranks that pass the same rows together, each a slice of the tokens (and of the heads in attention: Ulysses), so
    that `micro_batch_tokens` are spread over them. Divides `ranks` and the model's numbers of heads."""

    seed: int = 0
    """Seeds torch on every rank. A step itself draws no random number: dropout is off in training."""

    @field_validator("optimizer")
    @classmethod
    def _found_by_the_ranks(cls, name: str) -> str:
        return plugins.later("agentrl.optimizers", name)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.dtype == "bfloat16" and self.zero_stage < 2:
            lacks = "float32 sum of gradients" if self.zero_stage else "float32 master weights"
            raise ValueError(
                f"dtype = 'bfloat16' with zero_stage = {self.zero_stage} has no {lacks}; "
                "set zero_stage = 2 or 3, or dtype = 'float32'"
            )
        if self.attention == "flash_attention_2" and self.dtype == "float32":
            raise ValueError(
                "attention = 'flash_attention_2' has no float32 kernel; "
                "set dtype = 'bfloat16', or attention = 'segments'"
            )
        if self.memory.offload_optimizer != "none" and self.zero_stage == 0:
            raise ValueError("memory.offload_optimizer needs zero_stage = 1, 2 or 3; it is 0")
        if self.memory.offload_weights != "none" and self.zero_stage != 3:
            raise ValueError(f"memory.offload_weights needs zero_stage = 3; it is {self.zero_stage}")
        if self.memory.offload_weights != "none" and self.memory.offload_optimizer == "none":
            raise ValueError(
                "memory.offload_weights leaves the larger part, masters and optimizer states, on the device; "
                "set memory.offload_optimizer = 'cpu' too"
            )
        if self.kl.where == "reward" and self.kl.estimator != "k1":
            raise ValueError("kl.where = 'reward' takes kl.estimator = 'k1': the others are no log ratio to be summed")
        if self.lora.rank:
            self._adapters_possible()
        conflict = corrected_twice(self.loss, self.correction)
        if conflict:
            raise ValueError(conflict)
        alone = self.teacher.model is not None and self.teacher.replace
        if alone and self.kl.where == "reward" and self.kl.coefficient:
            raise ValueError(
                "teacher.replace = true leaves nothing of a divergence in the reward; "
                "set kl.where = 'loss', or teacher.replace = false"
            )
        if alone and self.critic.enabled:
            raise ValueError(
                "teacher.replace = true leaves nothing of the critic's advantages; "
                "set teacher.replace = false, or critic.enabled = false"
            )
        self._layout_possible()
        return self

    def _tensor_parallel_possible(self) -> None:
        fixes = {
            "zero_stage = 3 splits the weights already; set tensor_parallel = 1, or zero_stage = 0, 1 or 2": (
                self.zero_stage == 3
            ),
            "sequence_parallel shares out the same heads; set one of them to 1": self.sequence_parallel > 1,
            "a critic is not split over ranks; set critic.enabled = false, or tensor_parallel = 1": self.critic.enabled,
            "Muon needs whole matrices; set optimizer = 'adamw'": self.optimizer == "muon",
            "offloading was not tried with it; set memory.offload_optimizer = 'none'": (
                self.memory.offload_optimizer != "none"
            ),
        }
        if wrong := [fix for fix, applies in fixes.items() if applies]:
            raise ValueError(f"tensor_parallel = {self.tensor_parallel}: {wrong[0]}")

    def _layout_possible(self) -> None:
        if self.tensor_parallel > 1:
            self._tensor_parallel_possible()
        shared = self.tensor_parallel * self.sequence_parallel
        if self.ranks % shared:
            raise ValueError(f"ranks = {self.ranks} is no multiple of tensor_parallel * sequence_parallel = {shared}")
        if self.sequence_parallel > 1 and self.attention != "segments":
            raise ValueError(
                f"sequence_parallel = {self.sequence_parallel} exchanges tokens for heads in attention = 'segments' "
                f"only, and attention = {self.attention!r}; set attention = 'segments'"
            )
        if self.optimizer == "muon" and self.zero_stage:
            raise ValueError(
                f"optimizer = 'muon' needs whole matrices, and zero_stage = {self.zero_stage} gives each rank a flat "
                "share of them; set zero_stage = 0, or optimizer = 'adamw'"
            )

    @property
    def adapter_rank(self) -> int:
        """Of the adapter that engines have to serve; 0 where they are sent weights."""
        return self.lora.rank if self.lora.as_adapter else 0

    def _adapters_possible(self) -> None:
        if self.ema is not None:
            raise ValueError(f"ema = {self.ema:g} averages whole weights, lora.rank trains adapters; set one of them")
        if self.tensor_parallel > 1:
            raise ValueError(
                f"lora.rank with tensor_parallel = {self.tensor_parallel}: adapters are not split over ranks; set "
                "tensor_parallel = 1, and zero_stage = 3 if the weights are too large for one rank"
            )
        if self.lora.quantize != "none" and (self.zero_stage == 3 or self.dtype != "bfloat16"):
            raise ValueError(
                f"lora.quantize = {self.lora.quantize!r} holds whole weights on every rank and computes in bfloat16; "
                f"set zero_stage = 2 and dtype = 'bfloat16', not {self.zero_stage} and {self.dtype!r}"
            )

    def check_run(self, *, advantage: str, steps: int) -> None:
        """Raise ValueError, with the fix, when `algorithm.advantage` or `loop.steps` does not go with this table."""
        if (advantage == "gae") != self.critic.enabled:
            raise ValueError(
                f"algorithm.advantage = {advantage!r} and trainer.critic.enabled = {str(self.critic.enabled).lower()}: "
                '"gae" needs a critic, and a critic makes no other advantages; set both or neither'
            )
        if advantage == "distillation" and self.teacher.model is None:
            raise ValueError('algorithm.advantage = "distillation" needs a teacher; set trainer.teacher.model')
        if self.teacher.model is not None and self.teacher.replace and advantage != "distillation":
            raise ValueError(
                f"trainer.teacher.replace = true leaves nothing of algorithm.advantage = {advantage!r}; "
                'set algorithm.advantage = "distillation", or teacher.replace = false'
            )
        if self.critic.enabled and self.critic.warmup_steps >= steps:
            raise ValueError(
                f"trainer.critic.warmup_steps = {self.critic.warmup_steps} leaves no step of loop.steps = {steps} "
                "that trains the policy; set fewer"
            )
