"""vLLM's plugin hook (entry-point group `vllm.general_plugins`), called in every process of a vLLM server."""

from __future__ import annotations

import multiprocessing
import os

from agentrl.engine.launch import WEIGHTS_DIR_VARIABLE
from agentrl.parent import die_with_parent_thread

ENGINES = {
    "agentrl_shm": ("agentrl.engine.vllm_weights", "SharedMemoryWeights"),
    "agentrl_nccl": ("agentrl.engine.vllm_direct", "CheckedNccl"),
    "agentrl_ipc": ("agentrl.engine.vllm_direct", "CheckedIpc"),
}
"""vLLM's name of each weight transfer, and where its class is; see `launch.BACKENDS`."""


def register() -> None:
    """Adds our weight transfers, and ties the server's child processes to their parents.

    Does nothing in servers that agentrl did not start and that name no weights directory. May be called repeatedly.
    """
    if WEIGHTS_DIR_VARIABLE not in os.environ:
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    for name, (module, class_name) in ENGINES.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, module, class_name)
    if multiprocessing.parent_process() is not None:
        die_with_parent_thread()
