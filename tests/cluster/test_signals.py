"""The first signal ends a run in order, a second one at once, in a real process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from agentrl.cluster.signals import interruptible, signals_ignored

async def work(interrupts):
    def ask():
        print("asked", flush=True)
        return True

    limits = {"asked": (ask, 600.0), "late": (ask, 0.1)}
    with interrupts.cancelling(*limits.get(sys.argv[1], ())):
        try:
            print("working", flush=True)
            await asyncio.sleep(600)
        finally:
            print("cleaning", flush=True)
            if sys.argv[1] == "slow":
                await asyncio.sleep(600)

with interruptible(lambda: print("ended everything", flush=True)) as interrupts:
    try:
        if sys.argv[1] == "sync":
            print("working", flush=True)
            import time; time.sleep(600)
        asyncio.run(work(interrupts))
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        print(type(error).__name__, flush=True)
        sys.exit(7)
"""


def start(kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, kind], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_the_run_which_cleans_up(number: int):
    process = start("quick")
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("cleaning\nCancelledError\n", 7)


def test_a_run_that_ends_by_itself_is_cancelled_only_when_it_takes_too_long():
    process = start("late")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("asked\ncleaning\nCancelledError\n", 7)


def test_a_second_signal_does_not_wait_for_what_the_first_one_asked_for():
    process = start("asked")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("ended everything\n", 143)


def test_a_signal_outside_the_event_loop_interrupts_too():
    process = start("sync")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("KeyboardInterrupt\n", 7)


def test_a_second_signal_ends_everything_at_once():
    process = start("slow")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "cleaning\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("ended everything\n", 130)
