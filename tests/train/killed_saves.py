"""Saves checkpoints and kills the saving process (SIGKILL) before its n-th touch of the file system, for every n.

Run as a program: `killed_saves.py DIRECTORY VERSION` has version 9, saves VERSION and prints
`[[outcome, [names after the next save]], ...]`, one for each n. It forks, and so it wants a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from agentrl import manifest
from agentrl.train.checkpoints import Checkpoints
from agentrl.train.retention import Retention

TOUCHES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir")


def count_touches(directory: Path) -> list[str]:
    """Grows by one with each touch of a path in `directory` by this process."""
    touches: list[str] = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if is_touch(event, arguments, directory):
            touches.append(event)

    sys.addaudithook(hook)
    return touches


def is_touch(event: str, arguments: tuple[object, ...], directory: Path) -> bool:
    if event not in TOUCHES or not isinstance(arguments[0], str | os.PathLike):
        return False
    return str(arguments[0]).startswith(str(directory))


def kill_at_touch(number: int, directory: Path) -> None:
    """This process ends before its `number`-th touch (from 0) of a path in `directory`."""
    left = number

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if is_touch(event, arguments, directory):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(hook)


def in_a_child(work: Callable[[], None]) -> int:
    """What `os.waitpid` says of a child that did `work`."""
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    try:
        work()
    finally:
        os._exit(0)


def save(held: Checkpoints, version: int) -> None:
    partial = held.begin(version)
    (partial / "trainer").mkdir(parents=True)
    for name in ("model.safetensors", "config.json", "trainer/state.json", "trainer/policy-00001.safetensors"):
        (partial / name).write_bytes(b"%d" % version * 1000)
    held.commit(version, scores={}, run={"version": version})


def outcome(held: Checkpoints) -> str:
    latest = held.latest()
    if latest is None:
        return "nothing is left"
    manifest.check(held.path(latest))
    return f"v{latest}"


def main(root: Path, version: int) -> None:
    found: list[tuple[str, list[str]]] = []
    killed = True
    while killed:
        held = Checkpoints(root / f"{len(found)}", Retention(keep_last=1))
        save(held, 9)

        def work(held: Checkpoints = held, number: int = len(found)) -> None:
            kill_at_touch(number, held.directory)
            save(held, version)

        killed = in_a_child(work) == signal.SIGKILL
        if version == 9:
            held.tidy()  # as who goes on from it does: the version that was replaced may still have its hidden name
        after = outcome(held)
        save(held, 11)
        found.append((after, sorted(path.name for path in held.directory.iterdir())))
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
