"""The processes of a run, by the part that they are. What a campaign shoots at."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import psutil

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


def of_part(driver: int, part: Part) -> list[psutil.Process]:
    """Living ones among the driver's descendants; the outermost where a part has several, as a server with workers."""
    found = {process.pid: process for process in _descendants(driver) if COMMANDS[part] in _command(process)}
    return [process for process in found.values() if _parent(process) not in found]


def any_of(driver: int, part: Part, chance: random.Random) -> psutil.Process | None:
    """None while none of them lives."""
    living = sorted(of_part(driver, part), key=lambda process: process.pid)
    return chance.choice(living) if living else None


def tree(process: psutil.Process) -> list[psutil.Process]:
    """It and all below it: who only stops a server's parent has stopped nothing."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def tagged(mark: str, value: str) -> list[psutil.Process]:
    """Every living process with this variable in its environment, whoever is its parent now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(mark) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _descendants(driver: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(driver).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0
