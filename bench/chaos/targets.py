"""The processes of a run, by the part that they are. What a campaign shoots at."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable

import psutil

from bench.chaos.place import title
from bench.chaos.plan import Part

COMMANDS: dict[Part, str] = {
    "engine": "agentrl.engine.vllm_server",
    "engine actor": "ray::EngineActor",
    "gateway": "ray::GatewayActor",
    "rollout worker": "ray::RolloutActor",
    "trainer rank": "ray::TrainerActor",
    "reward service": "reward serve",
}
"""What the command line, or the title that Ray gives a process, has in it."""


def any_of(processes: Iterable[psutil.Process], part: Part, chance: random.Random) -> psutil.Process | None:
    """The outermost where a part has several, as a server with workers. None while none of them lives."""
    found = {process.pid: process for process in processes if COMMANDS[part] in title(process)}
    outermost = sorted(pid for pid, process in found.items() if _parent(process) not in found)
    return found[chance.choice(outermost)] if outermost else None


def tree(process: psutil.Process) -> list[psutil.Process]:
    """It and all below it: who only stops a server's parent has stopped nothing."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0
