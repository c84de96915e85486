"""Runs the child: starts it, reads what it writes, and outlives whatever the environment does to it."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentrl.env.check.child.author import is_library
from agentrl.env.check.plan import HUNG_STATUS, Plan, Section
from agentrl.env.check.records import (
    Begin,
    Death,
    EpisodeRecord,
    Exiting,
    GymnasiumRecord,
    Line,
    Place,
    Printed,
    Recording,
    Refused,
    SectionDone,
    Snapshot,
    StateChange,
    Subject,
    TasksRecord,
    decode,
)

FIRST: tuple[Section, ...] = ("tasks", "alone")
SECOND: tuple[Section, ...] = ("tasks", "again", "together", "reused", "leaks", "gymnasium")

_SILENCE_S = 15.0  # beyond a call's limit, after which a child that says nothing is stuck
_END_S = 30.0


def record(
    env_id: str,
    *,
    options: dict[str, Any] | None = None,
    split: str = "train",
    task_file: Path | None = None,
    seed: int = 0,
    tasks: int = 4,
    timeout_s: float = 30.0,
    progress: Callable[[str], None] = lambda what: None,
) -> Recording:
    """Plays the environment in two processes with other hash seeds. `timeout_s` is the limit of one call, in seconds.

    `progress` is told what is being done. Never raises for what the environment does.
    """
    recording = Recording(env_id=env_id)
    for process, sections in enumerate((FIRST, SECOND)):
        left = list(sections)
        while left and recording.refused is None:
            plan = Plan(
                env_id=env_id,
                sections=left,
                output=-1,
                dump_file="",
                options=options or {},
                split=split,
                task_file=None if task_file is None else str(task_file),
                seed=seed,
                tasks=tasks,
                timeout_s=timeout_s,
                process=process,
            )
            child = _Child(plan, recording, progress)
            whole = child.run()
            left = [] if whole else left[child.sections_begun :]
            if not whole and process == 0:
                return recording  # what comes next would end in the same way
    return recording


class _Child:
    def __init__(self, plan: Plan, recording: Recording, progress: Callable[[str], None]) -> None:
        self._plan = plan
        self._recording = recording
        self._progress = progress
        self._last = Begin("start", "import")
        self._exiting: Exiting | None = None
        self._hung = False
        self._heard = time.monotonic()
        self.sections_begun = 0

    def run(self) -> bool:
        """Whether it ended by itself. Its death is in the recording otherwise."""
        with tempfile.TemporaryDirectory(prefix="agentrl-env-check-") as folder:
            dump = Path(folder, "stacks")
            printed = Path(folder, "stdout")
            reading, writing = os.pipe()
            plan = msgspec.structs.replace(self._plan, output=writing, dump_file=str(dump))
            child = [sys.executable, "-m", "agentrl.env.check.child", msgspec.json.encode(plan).decode()]
            command = [sys.executable, "-m", "agentrl.env.check.keeper", str(writing), *child]
            with printed.open("wb") as stdout, open(reading, "rb", buffering=0) as pipe:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=stdout,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(writing,),
                    start_new_session=True,
                    env={**_environment(), "PYTHONHASHSEED": str(plan.process + 1)},
                )
                os.close(writing)
                try:
                    silent = self._read(process, pipe.fileno())
                finally:
                    _end(process)
            text = printed.read_bytes()[:200].decode(errors="replace").strip()
            if text:  # written by C code or a child process, past Python's stdout
                self._recording.printed.append(Printed(text))
            return self._settle(process.returncode, silent, dump)

    def _read(self, process: subprocess.Popen[bytes], pipe: int) -> bool:
        """Reads lines until the child ends. Returns whether it had to be given up."""
        os.set_blocking(pipe, False)
        buffer = b""
        self._heard = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                ended = process.poll() is not None  # before the last read, so nothing is missed
                selector.select(0.0 if ended else 0.2)
                with contextlib.suppress(BlockingIOError):
                    while chunk := os.read(pipe, 1 << 20):
                        *lines, buffer = (buffer + chunk).split(b"\n")
                        for line in lines:
                            with contextlib.suppress(msgspec.MsgspecError):  # an environment that writes to any file
                                self._take(decode(line))
                if ended:
                    return False
                if time.monotonic() - self._heard > self._limit_s + _SILENCE_S:
                    return True

    def _take(self, line: Line) -> None:
        self._heard = time.monotonic()
        recording = self._recording
        match line:
            case Begin():
                if line.section != self._last.section:
                    self._progress(line.section)
                if line.method == "" and line.section != "start":
                    self.sections_begun += 1
                self._last = line
            case Subject():
                recording.subject = recording.subject or line
            case TasksRecord():
                recording.tasks.append(line)
            case EpisodeRecord():
                recording.episodes.append(line)
                self._hung = self._hung or any(call.hung for call in line.calls)
            case Snapshot():
                recording.snapshots.append(line)
            case StateChange():
                recording.state.append(line)
            case GymnasiumRecord():
                recording.gymnasium = line
            case Printed():
                recording.printed.append(line)
            case Refused():
                recording.refused = line
            case Exiting():
                self._exiting = line
            case SectionDone():
                pass

    def _settle(self, status: int, silent: bool, dump: Path) -> bool:
        if status == 0 and not silent:
            return self._exiting is None or self._died("exit", status, self._exiting.place)
        if status == HUNG_STATUS and self._hung:
            return False  # the episode says it
        stacks = dump.read_text(errors="replace") if dump.exists() else ""
        place = _author_line(stacks, self._recording.subject)
        if silent or stacks.startswith("Timeout"):
            return self._died("hang", 0, place)
        if status < 0:
            return self._died("signal", -status, place)
        return self._died("exit", status, self._exiting.place if self._exiting is not None else place)

    @property
    def _limit_s(self) -> float:
        """Of the call that is running."""
        return self._plan.start_s if self._last.method == "import" else self._plan.timeout_s

    def _died(self, how: Any, status: int, place: Place | None) -> bool:
        self._recording.deaths.append(Death(how, status, self._last, place, self._limit_s))
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The keeper ends all that the environment has started, and itself, when its standard input is closed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=_END_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _author_line(stacks: str, subject: Subject | None) -> Place | None:
    """The innermost line of the author's in a dump of Python's fault handler."""
    folders = {os.path.dirname(place.file) for place in subject.places.values()} if subject is not None else set()
    frames = re.findall(r'^  File "(.+)", line (\d+) in (.+)$', stacks, re.MULTILINE)
    for file, line, name in frames:
        if any(file.startswith(folder + os.sep) for folder in folders):
            return Place(file, int(line), name)
    for file, line, name in frames:
        if not is_library(file):
            return Place(file, int(line), name)
    return None


def _environment() -> dict[str, str]:
    """This process's, also while another thread changes it."""
    while True:
        try:
            return dict(os.environ)
        except (KeyError, RuntimeError):
            continue
