"""vLLM's plugin hook (entry-point group `vllm.general_plugins`), called in every process of a vLLM server."""

from __future__ import annotations

import multiprocessing
import os

from agentrl.engine.launch import BACKEND, WEIGHTS_DIR_VARIABLE
from agentrl.engine.vllm_server import die_with_parent_thread


def register() -> None:
    """Adds the shared-memory weight transfer, and ties the server's child processes to their parents.

    Does nothing in servers that agentrl did not start and that name no weights directory. May be called repeatedly.
    """
    if WEIGHTS_DIR_VARIABLE not in os.environ:
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "agentrl.engine.vllm_weights", "SharedMemoryWeights")
    if multiprocessing.parent_process() is not None:
        die_with_parent_thread()
