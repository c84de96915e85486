"""Whatever ends the driver, nothing that it started lives on."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
from living import lives

from agentrl.cluster.reaper import watch

DRIVER = """
import subprocess, sys, time
from agentrl.cluster.cleanup import no_process_left
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
with no_process_left(lambda: print("asked to stop", flush=True)):
    tagged = subprocess.Popen(SLEEP, start_new_session=True)
    hidden = subprocess.Popen(SLEEP, start_new_session=True, env={})
    print(tagged.pid, hidden.pid, flush=True)
    if sys.argv[1] == "raise":
        raise ZeroDivisionError
    if sys.argv[1] == "stay":
        time.sleep(600)
"""


@pytest.mark.parametrize("end", ["return", "raise"])
def test_a_driver_that_ends_in_order_leaves_nothing(end: str):
    done = subprocess.run([sys.executable, "-c", DRIVER, end], capture_output=True, text=True, timeout=60)
    first, second = done.stdout.splitlines()
    assert [lives(int(pid)) for pid in first.split()] == [False, False]
    assert second == "asked to stop"


def test_a_driver_that_is_killed_leaves_nothing_either():
    """Of the two children one hides its environment: only its parent could name it, while it lived."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, "stay"], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    children = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
    answers = iter([False, True])

    def gone() -> bool:
        """One look at the living driver, then it is killed."""
        if answer := next(answers):
            driver.kill()
            driver.wait(10)
        return answer

    watch(driver.pid, "no tag", gone)
    assert [lives(child.pid) for child in children] == [False, False]
