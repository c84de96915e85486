"""The processes below a vLLM server for CPUs are forked from it, not started anew.

A server is two or three processes, each started by the one before: the API server, the engine core, and a worker where
the engine core is not its own. Each imports vLLM, for about ten seconds of one core, while the others wait. vLLM forks
them on GPUs. On CPUs it starts new ones, because OpenMP reads once, at its start, which cores a worker's threads are
bound to. Without binding there is nothing to read, and the engine core has no such threads at all.

A forked process whose parent has run OpenMP threads would hang; neither of the two has at that time (vLLM says as much
in `set_multiprocessing_worker_envs`).
"""

from __future__ import annotations

import multiprocessing
import os
import socket

from agentrl.engine.launch import BINDING_VARIABLE
from agentrl.parent import die_with_parent_thread


def fork_children(listener: socket.socket) -> None:
    """For the main process of a server, before vLLM starts anything. Children do not keep its `listener` open."""
    from vllm.v1.engine import utils as engine_cores
    from vllm.v1.executor import multiproc_executor as workers

    def after_fork() -> None:
        listener.close()
        die_with_parent_thread()  # vLLM's plugins, which see to it in processes started anew, are loaded already

    os.register_at_fork(after_in_child=after_fork)
    forked = multiprocessing.get_context("fork")
    engine_cores.get_mp_context = lambda: forked
    if os.environ.get(BINDING_VARIABLE) == "nobind":
        workers.get_mp_context = lambda: forked
