"""The seam: what a sandbox is asked, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Protocol, TypedDict, Unpack

from msgspec import Struct, field

MiB = 1024 * 1024

NO_FILES: Mapping[str, str | bytes] = MappingProxyType({})
NO_ENV: Mapping[str, str] = MappingProxyType({})

_NAME = 255  # bytes of one part of a path, as Linux's file systems have it
_ARGUMENT = 128 * 1024 - 1  # bytes of one argument or variable, as Linux has it


class NoRoom(ValueError):
    """The work folder that lasts is too full for the files of the next run: what earlier programs did, in words."""


class SandboxLimits(Struct, frozen=True, kw_only=True):
    """What one run may use. All of it is for the program and its descendants together, where nothing else is said.

    Raises ValueError, naming the limit, for one that is not positive and finite.
    """

    wall_s: float = 10.0
    """Seconds from the program's start until everything in the sandbox is killed."""

    cpu_s: float = 10.0
    """Processor seconds."""

    memory_bytes: int = 512 * MiB
    """Memory of the processes. What is in files counts as disk."""

    processes: int = 32
    """Processes and threads; starting one more fails inside (EAGAIN)."""

    disk_bytes: int = 64 * MiB
    """Size of the work folder, again of /tmp and of /dev/shm, and of one file; writing more fails inside (ENOSPC)."""

    disk_files: int = 10_000
    """Files and folders, in the work folder and /tmp together."""

    output_bytes: int = 64 * 1024
    """What is kept of standard output, and again of standard error. The rest is read and dropped."""

    open_files: int = 256
    """File descriptors of one process."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"the sandbox limit {name} is {value!r}; give a positive, finite number")


class Verdict(StrEnum):
    """How a run ended. Only OK says that the program ended by itself with exit code 0."""

    OK = "ok"
    FAILED = "failed"
    """It ended by itself with another exit code (127: there is no such program)."""
    KILLED = "killed"
    """A signal ended it that the sandbox did not send: a segmentation fault, an abort, its own kill."""
    TIMEOUT = "timeout"
    """Killed at `wall_s`."""
    CPU = "cpu"
    """Killed at `cpu_s`."""
    MEMORY = "memory"
    """Killed at `memory_bytes`."""
    DISK = "disk"
    """It did not end well, and its disk was full; or it was killed for the number of its files."""
    PROCESSES = "processes"
    """Killed for the number of its processes, where the kernel could not refuse them."""
    OUTPUT = "output"
    """Killed for a flood of output, far above what is kept."""


class SandboxResult(Struct, frozen=True, kw_only=True):
    """What a program did. A fault of the sandbox itself is raised as a `SandboxFault`, never told as a result."""

    verdict: Verdict
    exit_code: int | None = None
    """None when the sandbox killed it; 128 + signal, as shells have it, when a signal did."""

    signal: int | None = None
    """What ended it, by the shells' convention, so `exit 137` reads as signal 9."""

    stdout: str = ""
    """As UTF-8. Of a long one the first and the last half of `output_bytes`, and a note between them."""

    stderr: str = ""
    truncated: bool = False
    """Whether some of either stream was left out."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    files: dict[str, bytes] = field(default_factory=dict)
    """The regular files that `collect` asked for, by their path in the work folder."""

    left_out: int = 0
    """Files that `collect` or the workspace did not get: together they are larger than the disk, or unreadable."""

    reason: str = ""
    """The verdict in a few words, with the limit's value; "" for OK."""

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.OK


class RunOptions(TypedDict, total=False):
    """What a run may be given beside its program."""

    files: Mapping[str, str | bytes]
    """Contents by path in the work folder, which is the program's working directory. Their folders are made."""

    stdin: str | bytes
    """What it reads, then the end of file."""

    env: Mapping[str, str]
    """Added to a minimal environment. Nothing of the host's environment is in it."""

    limits: SandboxLimits | None
    """`SandboxLimits()` when left out."""

    workspace: Path | None
    """A folder of the host that is copied into the work folder before, and takes its content after, however the run
    ended: a work folder that lasts. Runs on one workspace must not overlap. The folder that it is in has to be
    writable, for it is replaced as a whole."""

    collect: Sequence[str]
    """Which files come back in the result's `files`: paths in the work folder, with `*` and `**` as in `glob`."""


class Sandbox(Protocol):
    """Runs programs that nobody trusts. One object serves any number of runs at once, from any thread."""

    async def run(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> SandboxResult:
        """Runs `argv` in an empty work folder, and waits until nothing of it is left.

        The program is looked up on the sandbox's own PATH, where `python3` is Python. Raises SandboxFault when the
        sandbox failed, NoRoom when the workspace leaves no room for `files`, another ValueError for a request that
        makes no sense. Cancelling it kills the program.
        """
        ...

    def run_blocking(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> SandboxResult:
        """`run` for callers without an event loop."""
        ...


class SandboxRequest(Struct, frozen=True, kw_only=True):
    """One run, checked. What `Sandbox.run` is given, as one value for those who implement it."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    stdin: bytes
    env: Mapping[str, str]
    limits: SandboxLimits
    workspace: Path | None
    collect: tuple[str, ...]

    @classmethod
    def of(
        cls,
        argv: Sequence[str],
        *,
        files: Mapping[str, str | bytes] = NO_FILES,
        stdin: str | bytes = "",
        env: Mapping[str, str] = NO_ENV,
        limits: SandboxLimits | None = None,
        workspace: Path | None = None,
        collect: Sequence[str] = (),
    ) -> SandboxRequest:
        """Raises ValueError for an empty `argv`, a path outside the work folder, or text that no program can get."""
        if isinstance(argv, str) or not argv:
            raise ValueError(f"argv is {argv!r}; give a list of the program and its arguments")
        for text in (*argv, *env, *env.values()):
            if "\0" in text:
                raise ValueError(f"{text[:60]!r} has a NUL character, which no argument or variable can hold")
            if len(_bytes(text)) > _ARGUMENT:
                raise ValueError(
                    f"{text[:60]!r}… is {len(_bytes(text)):,} bytes long; an argument has {_ARGUMENT:,} at most"
                )
        for name in env:
            if not name or "=" in name:
                raise ValueError(f"{name!r} is no name of an environment variable")
        return cls(
            argv=tuple(argv),
            files={relative(path): _bytes(content) for path, content in files.items()},
            stdin=_bytes(stdin),
            env=dict(env),
            limits=limits or SandboxLimits(),
            workspace=workspace,
            collect=tuple(collect),
        )


def relative(path: str) -> str:
    """The path in its plain form. Raises ValueError for one that is not inside the work folder."""
    parts = PurePosixPath(path).parts
    inside = bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path
    if not inside or any(len(_bytes(part)) > _NAME for part in parts):
        raise ValueError(f"the file {path[:300]!r} is not in the work folder; give a relative path without '..'")
    return "/".join(parts)


def _bytes(content: str | bytes) -> bytes:
    # A lone surrogate, which a model can write in JSON, must not fail a run.
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
