"""One driver a run directory, and none before all of the last one's processes are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cluster import run_lock as module
from agentrl.cluster.run_lock import run_lock
from agentrl.errors import ConfigError

HOLDER = """
import sys, time
from pathlib import Path
from agentrl.cluster.run_lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""

HEIR = """
import subprocess, sys
from pathlib import Path
from agentrl.cluster.run_lock import run_lock
with run_lock(Path(sys.argv[1])) as fd:
    heir = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[fd])
    print(heir.pid, flush=True)
    import os; os._exit(9)
"""


def run(program: str, path: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_while_a_driver_lives_it_is_named_and_once_it_is_dead_the_next_one_begins(tmp_path: Path):
    path = tmp_path / "lock"
    driver, _ = run(HOLDER, path)
    with pytest.raises(ConfigError, match=rf"goes on: process {driver.pid} drives it"), run_lock(path):
        pass
    driver.kill()
    driver.wait()
    with run_lock(path):
        assert path.read_text() == str(os.getpid())


def test_what_a_dead_driver_left_running_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "lock"
    driver, heir = run(HEIR, path)
    driver.wait()
    monkeypatch.setattr(module, "LEFT_S", 0.0)
    with pytest.raises(ConfigError, match="are left 0 s after its driver ended"), run_lock(path):
        pass
    os.kill(int(heir), 9)
    monkeypatch.setattr(module, "LEFT_S", 60.0)
    with run_lock(path):
        pass
