"""The sandboxes of this machine, each made once; a test is skipped where one cannot work."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from agentrl.errors import SandboxUnavailable
from agentrl.sandbox import Sandbox, make_sandbox

KINDS = ("bubblewrap", "unshare")


@functools.cache
def _made(kind: str) -> Sandbox | str:
    try:
        return make_sandbox(kind)
    except SandboxUnavailable as error:
        return str(error)


def sandbox_of(kind: str) -> Sandbox:
    made = _made(kind)
    if isinstance(made, str):
        pytest.skip(made)
    return made


KEPT: set[int] = set()
"""Processes below this one from before the test, which libraries keep for later: see conftest.py."""


def descendants_of_this_process() -> list[str]:
    """Names of the processes that the test left below this one, zombies included."""
    return [name for pid, name in children() if pid not in KEPT]


def children() -> list[tuple[int, str]]:
    """(process, its name and state)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition(" (")[2].rpartition(") ")
        except OSError:
            continue
        if rest.split()[1] == str(os.getpid()):
            found.append((int(stat.parent.name), f"{name} {rest[0]}"))
    return found
