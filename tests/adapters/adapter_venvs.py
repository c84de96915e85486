"""Environments for the packages that adapters are tested against: what the main one lacks, laid over it.

Each lock lists only what differs from `requirements/cpu.lock`; everything else is found in the main environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HOME = REPOSITORY / ".adapters"
OTHER_PYTHON = {"adapters-nemo.lock"}
"""Locks whose package names a newer Python than ours, and works on it."""
_OFFLINE = re.compile(
    r"NewConnectionError|ConnectTimeoutError|NameResolutionError|Failed to establish a new connection|ProxyError"
)


def adapter_python(name: str) -> Path:
    """The interpreter of the environment that `requirements/adapters-{name}.lock` describes; built when it changed.

    Skips the test where pip reaches no package index.
    """
    lock = REPOSITORY / f"requirements/adapters-{name}.lock"
    home = HOME / name
    python, ready = home / "bin/python", home / "ready"
    wanted = f"{hashlib.blake2b(lock.read_bytes()).hexdigest()} {sys.prefix}"
    HOME.mkdir(exist_ok=True)
    with (HOME / f"{name}.building").open("w") as building:
        fcntl.flock(building, fcntl.LOCK_EX)  # two test sessions may want it at once
        if not ready.is_file() or ready.read_text() != wanted:
            venv.create(home, clear=True, with_pip=False)
            _install(python, lock)
            _lay_over_this(home)
            ready.write_text(wanted)
    return python


def _install(python: Path, lock: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    if lock.name in OTHER_PYTHON:
        pip.append("--ignore-requires-python")
    done = subprocess.run([*pip, "--no-deps", "-r", str(lock)], capture_output=True, text=True, timeout=280)
    if done.returncode and _OFFLINE.search(done.stderr):
        pytest.skip(f"pip reaches no package index, so {lock.name} cannot be installed")
    assert done.returncode == 0, done.stderr


def _lay_over_this(home: Path) -> None:
    [packages] = home.glob("lib/python*/site-packages")
    below = [path for path in site.getsitepackages() if path.startswith(sys.prefix)]
    lines = [f"import site; site.addsitedir({path!r})" for path in below]
    (packages / "below.pth").write_text("\n".join(lines) + "\n")
