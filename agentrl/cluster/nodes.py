"""What the nodes of a cluster have to see before a run can use them, asked on each of them."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from agentrl.errors import RunError

ASK_S, FORGET_S = 120.0, 20.0
"""For a node to start a worker and answer."""


@dataclass(frozen=True)
class View:
    """`missing` are those of the asked paths that are not there."""

    python: str
    agentrl: str
    missing: frozenset[str]


def look(paths: Sequence[str]) -> View:
    """As this process sees it."""
    missing = frozenset(path for path in paths if not os.path.exists(path))
    return View(platform.python_version(), version("agentrl"), missing)


def unusable(views: Mapping[str, View], here: View, *, model: str, run: str, writers: set[str]) -> list[str]:
    """What is wrong with the nodes, by address, in words. `run`: a file in the run directory that the driver made.

    `writers`: addresses whose processes write into the run directory for others to read.
    """
    wrong = []
    for address, view in views.items():
        if (view.python, view.agentrl) != (here.python, here.agentrl):
            wrong.append(
                f"node {address} has Python {view.python} and agentrl {view.agentrl}, the driver's has {here.python} "
                f"and {here.agentrl}; use one environment for all"
            )
        if model in view.missing:
            wrong.append(f"node {address} has no model at {model}; put it there, or on a file system that all share")
        if run in view.missing and address in writers:
            wrong.append(
                f"node {address} is to write checkpoints, and does not see the run directory {Path(run).parent}; set "
                "runs_dir to a file system that all share, or keep trainer ranks on the driver's node by "
                "cluster.rank_resources"
            )
    return wrong


def ask(nodes: Mapping[str, str], paths: Sequence[str]) -> dict[str, View]:
    """The views of `nodes`, id by address. Raises what Ray raises: a node without agentrl cannot even look."""
    return dict(zip(nodes, _on_each(list(nodes.values()), ASK_S, look, list(paths)), strict=True))


def forget(node_ids: Sequence[str], directory: Path) -> None:
    """Removes a directory of the run's own on other nodes. Never fails: some may be gone."""
    try:
        _on_each(node_ids, FORGET_S, _remove, str(directory))
    except Exception:
        return


def node_address() -> str:
    """Of this process's node, as Ray has it."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def interface_of(address: str) -> str:
    """The network interface with this address. Raises RunError when there is none."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    raise RunError(f"no network interface of this node has {address}, the address that its Ray was started with")


def marker(directory: Path) -> Path:
    """A new file in the run directory: who sees it, shares the directory. The caller removes it."""
    path = directory / f".seen-{secrets.token_hex(8)}"
    path.touch()
    return path


def _remove(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _on_each(node_ids: Sequence[str], limit_s: float, function: Any, *args: object) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(function)
    calls = [
        task.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(*args)
        for node in node_ids
    ]
    answers: list[Any] = ray.get(calls, timeout=limit_s)
    return answers
