"""The `[trainer]` table of a run. Torch-free: the driver validates it before anything starts."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agentrl.section import Section

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
    """Updates that ramp the rate linearly up to its peak. The first update already has a rate above 0."""

    decay: Literal["linear", "cosine", "constant"] = "linear"
    """Shape of the rate between the peak and the last step of the run."""

    final_lr_fraction: float = Field(0.1, ge=0.0, le=1.0)
    """Rate of the last update as a fraction of the peak. Not read when `decay` is "constant"."""

    gradient_clip: float | None = Field(1.0, gt=0.0)
    """Bound on the global L2 norm of the gradient. None is off; TOML has no null, so a file says "off"."""

    clip_low: float = Field(0.2, ge=0.0, le=1.0)
    """Importance ratios below `1 - clip_low` get no gradient where the advantage is negative."""

    clip_high: float = Field(0.2, ge=0.0)
    """Importance ratios above `1 + clip_high` get no gradient where the advantage is positive."""

    ranks: int = Field(1, ge=1)
    """Data-parallel trainer processes, one a GPU (or one a share of the CPU cores)."""

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
    """Of weights and activations. Logits, loss and optimizer states are float32 in both."""

    weight_group_min_bytes: int = Field(1 << 20, ge=1)
    """Layers are published together until a group has this many bytes; a group is what is gathered at one time."""

    threads: int = Field(1, ge=1)
    """CPU threads of one rank."""

    collective_timeout_s: float = Field(600.0, gt=0.0)
    """How long a rank waits for the others before it fails."""

    seed: int = 0
    """Seeds torch on every rank. A step itself draws no random number: dropout is off in training."""

    @model_validator(mode="before")
    @classmethod
    def _off_is_none(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("gradient_clip") == "off":
            return {**values, "gradient_clip": None}
        return values

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.dtype == "bfloat16" and self.zero_stage == 0:
            raise ValueError(
                "dtype = 'bfloat16' with zero_stage = 0 has no float32 master weights; "
                "set zero_stage = 1, 2 or 3, or dtype = 'float32'"
            )
        if self.attention == "flash_attention_2" and self.dtype == "float32":
            raise ValueError(
                "attention = 'flash_attention_2' has no float32 kernel; "
                "set dtype = 'bfloat16', or attention = 'segments'"
            )
        return self
