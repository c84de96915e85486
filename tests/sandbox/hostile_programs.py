"""The programs of hostile_programs.txt."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from agentrl.sandbox import SandboxLimits, Verdict
from agentrl.sandbox.base import MiB

PRELUDE = """
import ctypes, itertools, mmap, os, resource, shutil, signal, socket, subprocess, sys, threading, time
from pathlib import Path

def verdict(free):
    print("ESCAPED" if free else "held", flush=True)

def attempt(*calls):
    for number, call in enumerate(calls):
        try:
            call()
        except OSError:
            verdict(False)
        else:
            print("number", number, end=" ")
            verdict(True)

def refused(*calls):
    libc = ctypes.CDLL(None, use_errno=True)
    for number, call in enumerate(calls):
        print("number", number, end=" ")
        verdict(libc.syscall(*call) != -1)
"""


@dataclass(frozen=True)
class Hostile:
    source: str
    verdicts: frozenset[Verdict]
    limits: SandboxLimits
    only_on: str | None  # the processor whose system calls it numbers

    @property
    def runs_here(self) -> bool:
        return self.only_on in (None, platform.machine())

    @property
    def says_held(self) -> bool:
        return bool(re.search(r"attempt\(|refused\(|verdict\(|\"held\"", self.source))


def _parse(text: str) -> dict[str, Hostile]:
    found = {}
    for block in re.split(r"(?m)^== ", text)[1:]:
        head, _, source = block.partition("\n")
        name, _, rest = head.partition(": ")
        verdicts, _, options = rest.partition(" | ")
        limits = {"wall_s": 60.0, "cpu_s": 30.0, "memory_bytes": 256 * MiB, "disk_bytes": 16 * MiB}
        for limit in re.findall(r"(\w+)=(\d+)", options):
            limits[limit[0]] = int(limit[1])
        found[name] = Hostile(
            source=source,
            verdicts=frozenset(map(Verdict, verdicts.split())),
            limits=SandboxLimits(**limits),
            only_on="x86_64" if "x86_64" in options else None,
        )
    return found


HOSTILE = _parse(Path(__file__).with_suffix(".txt").read_text())
