"""What is still there when an episode is over: threads, processes, open files and sockets, tasks, temporary files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

import psutil

from agentrl.env.check.child.author import Author
from agentrl.env.check.child.seen import Seen
from agentrl.env.check.records import Left

OWN_THREADS = "agentrl-env-check"


def leftovers(author: Author, seen: Seen) -> list[Left]:
    """In the event loop's thread."""
    return [*_threads(seen), *_processes(seen), *_descriptors(seen), *_tasks(author), *_temporary(seen)]


def _threads(seen: Seen) -> list[Left]:
    return [
        Left("thread", thread.name, seen.threads.get(thread))
        for thread in threading.enumerate()
        if not thread.name.startswith(OWN_THREADS)
    ]


def _processes(seen: Seen) -> list[Left]:
    """Own children and those below them, and the orphans that the keeper has adopted meanwhile."""
    me = psutil.Process()
    found: list[Left] = []
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            ended = " (ended, never waited for)" if child.status() == psutil.STATUS_ZOMBIE else ""
            found.append(Left("process", f"{child.name()}{ended}", seen.place("process")))
    with contextlib.suppress(psutil.Error):
        for orphan in psutil.Process(os.getppid()).children():
            if orphan.pid != me.pid and orphan.status() != psutil.STATUS_ZOMBIE:  # the keeper waits for it later
                found.append(Left("process", f"{orphan.name()} (its parent has ended)", seen.place("process")))
    return found


def _descriptors(seen: Seen) -> list[Left]:
    found: list[Left] = []
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:
        return []
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # the one that listed them
        is_socket = target.startswith("socket:")
        place = seen.place("socket") if is_socket else seen.named.get(("file", target.removesuffix(" (deleted)")))
        if place is None and target.startswith("pipe:"):
            place = seen.place("process")
        found.append(Left("socket" if is_socket else "file", target.partition("[")[0].rstrip(":"), place))
    return found


def _tasks(author: Author) -> list[Left]:
    current = asyncio.current_task()
    return [
        Left("task", getattr(task.get_coro(), "__qualname__", "task"), author.of_coroutine(task.get_coro()))
        for task in asyncio.all_tasks()
        if task is not current and not task.get_name().startswith(OWN_THREADS)
    ]


def _temporary(seen: Seen) -> list[Left]:
    return [Left("temporary", path, place) for path, place in seen.temporary.items() if os.path.lexists(path)]
