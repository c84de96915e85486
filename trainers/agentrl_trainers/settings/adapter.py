"""Low-rank adapters: what is trained, and how small. Torch-free."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentrl.section import Section


class LoraConfig(Section):
    """`[trainer.lora]`: train low-rank adapters (peft) and leave the weights as they are."""

    rank: int = Field(default=0, ge=0, le=512)
    """Rank of the adapters; 0 trains the weights themselves."""

    alpha: float = Field(default=32.0, gt=0.0)
    """The adapters' output is scaled by `alpha / rank`."""

    targets: str | list[str] = "all-linear"
    """The modules that get one: `all-linear` (every linear layer but the output head), a list of names
    (`["q_proj", "v_proj"]`), or one regular expression over whole module paths, as peft reads them."""

    publish: Literal["adapter", "merged"] = "adapter"
    """What engines are sent: the adapter alone, or the changed weights with a copy of it merged in."""

    quantize: Literal["none", "nf4"] = "none"
    """Hold the frozen weights in 4 bits (QLoRA, bitsandbytes, needs a GPU)."""

    @property
    def as_adapter(self) -> bool:
        """Whether engines serve the adapter beside their weights."""
        return self.rank > 0 and self.publish == "adapter"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.targets:
            raise ValueError('targets is empty: no layer would be trained; name some, or leave "all-linear"')
        if self.quantize != "none" and not self.rank:
            raise ValueError(f"quantize = {self.quantize!r} freezes the weights; set rank above 0 to train adapters")
        if self.quantize != "none" and self.publish == "adapter":
            raise ValueError(
                f"quantize = {self.quantize!r} with publish = 'adapter': engines hold the weights in full and would "
                "sample from another policy than the one that is trained; set publish = 'merged'"
            )
        return self
