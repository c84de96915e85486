"""Where a campaign's run is: on this machine alone, or on several Ray nodes that are made on it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from bench.chaos.ray_nodes import RayNode, RayNodes

MARK = "AGENTRL_CHAOS"
"""In the environment of what a campaign starts on this machine, so that it is known whoever its parent is later."""

OF_A_RUN = ("agentrl.cli", "agentrl.engine", "ray::Engine", "ray::Trainer", "ray::Gateway", "ray::Rollout")
"""In the command lines and titles of a run's processes. On a cluster Ray's own stay when the run has ended."""

ENGINE_NODES = 2


class Place(Protocol):
    settings: Sequence[str]
    environment: Mapping[str, str]

    def command(self, arguments: Sequence[str]) -> list[str]:
        """What starts `arguments` there."""

    def driver(self, started: int) -> int:
        """The driver itself, of what the campaign started."""

    def processes(self, driver: int) -> Iterator[psutil.Process]:
        """Living ones of the run, and maybe others."""

    def left(self, mark: str) -> list[psutil.Process]:
        """Living ones of a run that has ended."""


class ThisMachine:
    settings: Sequence[str] = ()
    environment: Mapping[str, str] = {}

    def command(self, arguments: Sequence[str]) -> list[str]:
        return list(arguments)

    def driver(self, started: int) -> int:
        return started

    def processes(self, driver: int) -> Iterator[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield from _living(psutil.Process(driver).children(recursive=True))

    def left(self, mark: str) -> list[psutil.Process]:
        found = []
        for process in _living(psutil.process_iter()):
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == mark:
                    found.append(process)
        return found


class OnNodes:
    """The head trains, the other nodes have an engine each; of these, one loses its power now and then."""

    settings: Sequence[str] = (
        'cluster.ray_address="auto"',
        'cluster.engines="strict_spread"',
        "cluster.engine_resources={engine=1}",
        "cluster.rank_resources={trainer=1}",
        f"engine.replicas={ENGINE_NODES}",
    )
    resources: Sequence[Mapping[str, float]] = ({"trainer": 1}, *[{"engine": 1}] * ENGINE_NODES)

    def __init__(self, nodes: RayNodes, cwd: Path) -> None:
        self._nodes, self._cwd = nodes, cwd
        self.environment = nodes.environment

    def command(self, arguments: Sequence[str]) -> list[str]:
        return self._nodes.command(self._nodes.nodes[0], *arguments, cwd=self._cwd)

    def driver(self, started: int) -> int:
        """Who enters a node's processes stays outside and waits for it."""
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            return psutil.Process(started).children()[0].pid
        return started

    def processes(self, driver: int) -> Iterator[psutil.Process]:
        return (process for process in _living(psutil.process_iter()) if self._nodes.has(process.pid))

    def left(self, mark: str) -> list[psutil.Process]:
        return [one for one in self.processes(0) if any(word in title(one) for word in OF_A_RUN)]

    def any_node(self, chance: random.Random) -> RayNode | None:
        """One with an engine's place, whose power is on; None while there is none, or no other one."""
        on = [node for node in self._nodes.nodes[1:] if node.init is not None]
        return chance.choice(on) if len(on) > 1 else None

    def switch_off(self, node: RayNode) -> None:
        self._nodes.kill(node)

    def switch_on(self, node: RayNode) -> None:
        """May be repeated. Raises NodeFailed."""
        if node.init is None:
            self._nodes.revive(node)


def title(process: psutil.Process) -> str:
    """Its command line, or what it calls itself; "" when it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _living(processes: Iterator[psutil.Process] | list[psutil.Process]) -> Iterator[psutil.Process]:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process
