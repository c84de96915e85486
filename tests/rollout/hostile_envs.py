"""Environments that do their worst in `step`, each in its own way; without a way in the options they behave."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import agentrl
from agentrl_envs.calculator.env import Calculator

BOMB_S = 5.0  # nothing here outlives this by itself, so that a failing test does not take the machine along


def spin() -> None:
    while True:
        pass


def spin_in_c() -> None:
    """Without ever giving the interpreter's lock back, as a regular expression that backtracks does."""
    ctypes.PyDLL(None).sleep(1000)


def leak() -> None:
    kept = []
    while True:
        kept.append(b"x" * 2**22)
        time.sleep(0.002)


def leak_in_a_child() -> None:
    code = "import time; kept = [b'x' * 2**22 for _ in range(200)]; time.sleep(1000)"
    subprocess.run([sys.executable, "-c", code], check=False)


def take_too_much_at_once() -> None:
    bytearray(8 * 2**30)


def fork_bomb() -> None:
    until = time.monotonic() + BOMB_S
    while time.monotonic() < until:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
    os._exit(0)


def close_every_file() -> None:
    os.closerange(3, 256)
    time.sleep(1000)


def write_garbage_everywhere() -> None:
    for fd in range(3, 64):
        try:
            os.write(fd, b"\x00\x00\x00\x05[1,2]")
        except OSError:
            continue


def announce_a_huge_answer() -> None:
    for fd in range(3, 64):
        try:
            os.write(fd, b"\xff\xff\xff\xff")
        except OSError:
            continue


def print_garbage() -> None:
    for _ in range(100):
        print("\x00garbage{]")


def leave_a_daemon_behind() -> None:
    """The classic way out: a new session, and a parent that is gone. It does not hear SIGTERM either."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0)
    os.wait()


def leave_zombies_and_orphans() -> None:
    """Case 34."""
    subprocess.Popen(["bash", "-c", "sleep 1000 & sleep 1000"])
    subprocess.Popen(["true"])


def kill_its_guard() -> None:
    leave_a_daemon_behind()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def use_the_main_thread() -> None:
    """What answer checkers do for their time limits; it works in a process of its own only."""
    signal.signal(signal.SIGALRM, lambda *_: None)


def read_standard_input() -> None:
    assert sys.stdin.read() == ""


def crash_once(which: str = "") -> None:
    """The first time that anybody comes here, with the mark of it as a file."""
    try:
        os.close(os.open(os.environ["AGENTRL_TEST_CRASHED"] + which, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os._exit(9)


def raise_one() -> None:
    raise LookupError("the reason")


class Hostile(agentrl.Env):
    """One step, reward 1. `options["how"]` names a function above, called in that step."""

    def __init__(self, said: str = "ready") -> None:
        self.said = said

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.how = (options or {}).get("how")
        drawn = f"{self.np_random.integers(1000)} {random.random()} {np.random.random()}"
        return [agentrl.user(f"{self.said} {os.getpid()} {drawn}")], {}

    def step(self, action: Any) -> Any:
        if self.how is not None:
            how: Callable[[], None] = globals()[self.how]
            how()
        return [], 1.0, True, False, {}


class WishesForAProcess(Hostile):
    isolation = "process"


class Async(Hostile):
    """The same with `async def`."""

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(0)
        return super().step(action)


class CountsSteps(agentrl.Env):
    """A step every time that it is asked, `steps` of them. `options["how"]` is done in the first."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.options = options or {}
        self.done = 0
        return [agentrl.user("0")], {}

    def step(self, action: Any) -> Any:
        self.done += 1
        if self.options.get("how"):
            globals()[self.options["how"]]()
        ended = self.done == self.options["steps"]
        return [] if ended else [agentrl.user(str(self.done))], 1.0, ended, False, {}


class CountsStepsAsync(CountsSteps):
    async def step(self, action: Any) -> Any:
        await asyncio.sleep(0)
        return super().step(action)


class CrashingCalculator(Calculator):
    """Ends its process in the first step that anybody takes for a task, and never again for that one."""

    isolation = "process"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seed = seed
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        crash_once(f"-{self.seed}")
        return super().step(action)
