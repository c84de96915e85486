"""What this machine offers a sandbox: a user id of its own, and a Python that the program can use."""

from __future__ import annotations

import os
import platform
import random
import re
import shutil
import stat
import sys
from pathlib import Path

from msgspec import Struct

# Above the ids of users, subordinate users and containers, below the kernel's own.
_FREE_IDS = (1_900_000_000, 1_900_000_000 + 2**24)


class PythonHome(Struct, frozen=True):
    """A Python that programs can use inside."""

    executable: Path
    folders: tuple[Path, ...]
    """What has to be visible inside, at the same paths; () when /usr has it all."""


def fresh_uid() -> int | None:
    """A user id that nobody has, for one run; None where we may not choose, because we are not root.

    One of its own, because the kernel does not hold root to a number of processes, and counts them by user.
    """
    if os.geteuid() != 0:
        return None
    lowest, above = _FREE_IDS
    mapped = min(_largest_id("uid_map"), _largest_id("gid_map"))
    if mapped < above:
        lowest, above = max(1, mapped - 4096), mapped
    return random.SystemRandom().randrange(lowest, above)


def _largest_id(name: str) -> int:
    rows = [line.split() for line in Path("/proc/self", name).read_text().splitlines()]
    return max(int(first) + int(length) - 1 for first, _, length in rows)


def counts_processes_per_sandbox(uid: int | None) -> bool:
    """Whether RLIMIT_NPROC counts a sandbox's processes alone: by a user of its own, or by namespace (Linux 5.14)."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return uid is not None or (found is not None and (int(found[1]), int(found[2])) >= (5, 14))


def find_python(chosen: Path | None) -> PythonHome:
    """`chosen`, an interpreter of a virtual environment or not, else the one that runs this, without its packages."""
    executable = chosen or Path(getattr(sys, "_base_executable", None) or sys.executable)
    real = executable.resolve()
    folders = [real.parent.parent]
    if chosen is not None and (chosen.parent.parent / "pyvenv.cfg").is_file():
        folders.append(chosen.parent.parent.absolute())
    return PythonHome(
        executable if chosen is not None else real,
        tuple(folder for folder in folders if not folder.is_relative_to("/usr")),
    )


def reachable(folder: Path, uid: int | None) -> bool:
    """Whether the user of the sandbox may go there: everybody may enter each folder on the way."""
    if uid is None:
        return os.access(folder, os.R_OK | os.X_OK)
    return all(part.stat().st_mode & stat.S_IXOTH for part in (folder, *folder.parents))


def program(name: str) -> str | None:
    """A system program; root's own folders are not always on a service's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
