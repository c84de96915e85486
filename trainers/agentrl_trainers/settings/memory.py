"""What is kept where while training: offload and recomputation. Torch-free."""

from __future__ import annotations

from typing import Literal

from agentrl.section import Section


class MemoryConfig(Section):
    """`[trainer.memory]`: time given for memory."""

    activation_checkpointing: bool = False
    """Keep only the layers' inputs in the forward pass, and run each layer again in the backward pass: about a third
    more work."""

    offload_optimizer: Literal["none", "cpu"] = "none"
    """Hold optimizer states and master weights in the host's memory, where torch's optimizer updates them; needs
    `zero_stage` 1, 2 or 3."""

    offload_weights: Literal["none", "cpu"] = "none"
    """Hold the weights' shards in the host's memory; needs `zero_stage = 3` and `offload_optimizer = "cpu"`."""
