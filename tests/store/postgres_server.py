"""A PostgreSQL server of the tests' own: in a temporary directory, on a Unix socket, gone with the tests."""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

START_S = 60.0
"""How long the server may take until it answers, and to stop."""
LIMITS = ["-c", "max_connections=100", "-c", "shared_buffers=32MB", "-c", "fsync=off"]
"""fsync only matters when the machine loses power."""


def programs() -> Path | None:
    """The folder of initdb and postgres: on the PATH, or where Debian's package puts them."""
    folders = [os.path.dirname(found)] if (found := shutil.which("initdb")) else []
    folders += sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    usable = (Path(folder) for folder in folders if all((Path(folder) / p).exists() for p in ("initdb", "postgres")))
    return next(usable, None)


class PostgresServer:
    """`database()` gives the URL of a new empty database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def database(self) -> str:
        name = f"test{next(self._numbers)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://agentrl@/{name}?host={self._folder}"

    def connect(self, database: str) -> psycopg.Connection:
        return psycopg.connect(host=str(self._folder), user="agentrl", dbname=database, autocommit=True)


@contextmanager
def running() -> Iterator[PostgresServer]:
    """Skips the test with the reason where there is no server to start."""
    if (found := programs()) is None:
        pytest.skip("PostgreSQL's server is not installed: no initdb on the PATH or in /usr/lib/postgresql")
    folder = Path(tempfile.mkdtemp(prefix="agentrl-postgres-"))  # a socket's path has to be short
    as_user: dict[str, object] = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        nobody = pwd.getpwnam("nobody")
        as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    try:
        initialise = [found / "initdb", "-D", folder / "data", "-U", "agentrl", "-A", "trust", "-E", "UTF8"]
        done = subprocess.run(
            [*initialise, "--no-locale", "--no-sync"],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=2 * START_S,
            **as_user,
        )
        if done.returncode != 0:
            pytest.fail(f"initdb failed: {done.stderr}")
        with (folder / "server.log").open("w") as log:
            where = ["-D", folder / "data", "-k", folder, "-c", "listen_addresses="]
            server = subprocess.Popen(
                [found / "postgres", *where, *LIMITS],
                stdout=log,
                stderr=log,
                cwd=folder,
                preexec_fn=_die_with_the_tests,
                **as_user,
            )
        try:
            _wait_until_it_answers(server, folder)
            yield PostgresServer(folder)
        finally:
            server.send_signal(signal.SIGINT)  # ends its connections and stops
            try:
                server.wait(timeout=START_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(folder)


def _die_with_the_tests() -> None:
    """Also when they are killed: SIGINT when the parent is gone (Linux's PR_SET_PDEATHSIG)."""
    if hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(1, signal.SIGINT)


def _wait_until_it_answers(server: subprocess.Popen[bytes], folder: Path) -> None:
    """postmaster.pid says "ready" in its last line once the server takes connections."""
    pid_file = folder / "data" / "postmaster.pid"
    for _ in range(int(START_S / 0.05)):
        try:
            server.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            if pid_file.exists() and pid_file.read_text().rstrip().endswith("ready"):
                return
        else:
            break
    pytest.fail(f"postgres did not start: {(folder / 'server.log').read_text()}")
