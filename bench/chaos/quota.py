"""A file system of a few hundred MiB, to be filled without harm to anybody else's."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[Path | None]:
    """Mounted at `path`, and gone afterwards. None where this machine does not let us mount one."""
    path.mkdir(parents=True, exist_ok=True)
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "agentrl-chaos", str(path)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield path
    finally:
        unmount(path)


def unmount(path: Path) -> None:
    """Nothing where none is mounted: a campaign that was killed leaves one."""
    subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)
