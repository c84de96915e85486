"""Whatever a run started is found and ended: children, orphans, and those that hide their environment."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
from living import lives

from agentrl.cluster.processes import TAG, descendants, end, new_tag, processes_of, tag_this_process

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"
ORPHAN = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True); print(p.pid, flush=True)"
)


def start(code: str, **env: str) -> subprocess.Popen[bytes]:
    """A Python process that is up when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **env}
    )
    assert process.stdout is not None
    process.first_line = process.stdout.readline().decode().strip()  # type: ignore[attr-defined]
    return process


@pytest.fixture
def tag(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(TAG, "none")
    tag = new_tag()
    tag_this_process(tag)
    return tag


def test_children_and_orphans_are_found_and_earlier_children_are_left_alone(tag: str):
    earlier_child = start(WAIT, **{TAG: "another run"})
    earlier = descendants()
    child = start(WAIT)
    untagged_child = start(WAIT, **{TAG: "overwritten"})
    orphan = int(start(ORPHAN).first_line)  # type: ignore[attr-defined]
    found = {process.pid for process in processes_of(tag, earlier=earlier)}
    assert {child.pid, untagged_child.pid, orphan} <= found
    assert earlier_child.pid not in found
    end(processes_of(tag, earlier=earlier))
    assert [lives(pid) for pid in (child.pid, untagged_child.pid, orphan)] == [False] * 3
    assert lives(earlier_child.pid)
    earlier_child.kill()
    earlier_child.wait(5)


def test_a_process_that_ignores_sigterm_is_killed(tag: str):
    stubborn = start(STUBBORN)
    names = end([psutil.Process(stubborn.pid)], grace_s=0.2)
    assert len(names) == 1
    assert not lives(stubborn.pid)


def test_ending_nothing_is_fine(tag: str):
    gone = start("print('up')")
    gone.wait(5)
    process = psutil.Process(os.getpid())
    assert end([]) == []
    assert processes_of(tag, earlier=[*descendants(), process]) == []


YIELDING = """
import os, threading
from agentrl.cluster.processes import yield_cores

leave = threading.Event()
threading.Thread(target=leave.wait).start()
yield_cores()
threading.Thread(target=leave.wait).start()
print(sorted({os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")}))
leave.set()
"""


def test_a_process_that_yields_does_so_with_all_its_threads_those_to_come_too():
    done = subprocess.run([sys.executable, "-c", YIELDING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[19]\n"
