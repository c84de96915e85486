"""Blocking calls in daemon threads: in order, bounded in time, and no reason for a process to stay alive."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from agentrl.env.bridge import bridge, run_to_end
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import EnvironmentFault, EnvironmentTimeout


async def test_calls_run_in_order_in_one_daemon_thread() -> None:
    thread = CallThread("t", HungCalls())
    threads = [await thread.run(threading.current_thread, 5, "call") for _ in range(3)]
    assert len(set(threads)) == 1
    assert threads[0].daemon
    thread.close()


async def test_after_a_timeout_the_thread_takes_no_more_calls() -> None:
    release, hung = threading.Event(), HungCalls()
    thread = CallThread("t", hung)
    with pytest.raises(EnvironmentTimeout, match=r"wait took longer than 0\.02 s"):
        await thread.run(release.wait, 0.02, "wait")
    with pytest.raises(EnvironmentFault, match="an earlier call of the same environment still hangs"):
        await thread.run(release.wait, 0.02, "next")
    assert (thread.abandoned, hung.count) == (True, 1)
    release.set()


async def test_a_timeout_error_of_the_calls_own_is_not_taken_for_ours() -> None:
    def raises() -> None:
        raise TimeoutError("theirs")

    thread = CallThread("t", HungCalls())
    with pytest.raises(TimeoutError, match="theirs"):
        await thread.run(raises, 5, "call")
    with pytest.raises(TimeoutError, match="theirs"):
        thread.run_blocking(raises, 5, "call")
    assert not thread.abandoned
    thread.close()


def test_a_blocking_caller_is_bounded_too() -> None:
    release = threading.Event()
    thread = CallThread("t", HungCalls())
    assert thread.run_blocking(lambda: 7, 5, "call") == 7
    with pytest.raises(EnvironmentTimeout):
        thread.run_blocking(release.wait, 0.02, "wait")
    release.set()


def test_a_process_ends_while_a_call_hangs() -> None:
    program = """
import asyncio, threading
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import EnvironmentTimeout
async def main():
    try:
        await CallThread("t", HungCalls()).run(threading.Event().wait, 0.01, "call")
    except EnvironmentTimeout:
        print("timed out")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "timed out\n")


def test_a_coroutine_gives_its_result_outside_an_event_loop() -> None:
    async def seven() -> int:
        return 7

    assert bridge(seven()) == 7
    assert run_to_end(seven()) == 7


async def test_inside_an_event_loop_it_is_awaited() -> None:
    async def seven() -> int:
        return 7

    assert await bridge(seven()) == 7


def test_a_coroutine_that_suspends_is_not_run_to_its_end() -> None:
    async def sleeps() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        run_to_end(sleeps())
