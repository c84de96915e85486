"""Hostile programs: each ends with the right verdict, and the host is as it was."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hostile_programs import HOSTILE, PRELUDE
from sandboxes import descendants_of_this_process, sandbox_of

SECRET = "AGENTRL_TEST_SECRET_5f2c"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Things of the host that a program may look for; afterwards they are as they were, and nothing is left running."""
    monkeypatch.setenv(SECRET, "1")
    canary = tmp_path / "canary"
    canary.write_text("alive")
    bystander = psutil.Popen(["sleep", "600"])
    files_before = len(os.listdir("/proc/self/fd"))
    mounts_before = Path("/proc/self/mountinfo").read_text()
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        name = f"agentrl-test-{os.getpid()}"
        unix.bind(f"\0{name}")
        unix.listen()
        inherited = os.open(canary, os.O_RDONLY)
        os.set_inheritable(inherited, True)
        yield {
            "CANARY": str(canary),
            "SECRET": SECRET,
            "HOST_PID": bystander.pid,
            "HOST_PORT": tcp.getsockname()[1],
            "HOST_SOCKET": name,
        }
        os.close(inherited)
    assert canary.read_text() == "alive"
    assert bystander.is_running()
    bystander.kill()
    bystander.wait(10)
    assert descendants_of_this_process() == []
    assert len(os.listdir("/proc/self/fd")) <= files_before
    # No process and no file system of the sandbox is left, and with them goes all memory that they held.
    assert Path("/proc/self/mountinfo").read_text() == mounts_before
    assert not Path("/usr/planted").exists()
    assert "agentrl-sandbox" not in {thread.name for thread in threading.enumerate()}


# The second kind takes as long again; where the first is not installed, it is the only one.
SECOND = pytest.param("unshare", marks=[pytest.mark.slow] if shutil.which("bwrap") else [])


@pytest.mark.parametrize("kind", ["bubblewrap", SECOND])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_held(name: str, kind: str, host: dict[str, object]) -> None:
    hostile = HOSTILE[name]
    if not hostile.runs_here:
        pytest.skip(f"its system calls are numbered for {hostile.only_on}")
    facts = "".join(f"{key} = {value!r}\n" for key, value in host.items())
    program = {"hostile.py": PRELUDE + facts + hostile.source}
    result = sandbox_of(kind).run_blocking(["python3", "hostile.py"], files=program, limits=hostile.limits)
    assert "ESCAPED" not in result.stdout, result
    assert result.verdict in hostile.verdicts, result
    assert ("held" in result.stdout) is hostile.says_held, result
    assert result.wall_s < hostile.limits.wall_s + 2


def test_there_are_at_least_twenty_hostile_programs() -> None:
    assert len(HOSTILE) >= 20
