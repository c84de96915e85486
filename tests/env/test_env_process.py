"""Processes of agent programs: started from any event loop, read to their end, and gone afterwards."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from agentrl.env.process import Finished, run_process
from agentrl.errors import EnvironmentFault

PATH = {"PATH": "/usr/bin:/bin"}


async def run(*argv: str, **options: Any) -> Finished:
    return await run_process(argv, env=PATH, **options)


async def test_what_goes_in_and_what_comes_out() -> None:
    ended = await run("sh", "-c", "cat; echo beside >&2; exit 7", stdin=b"said")
    assert ended == Finished(status=7, stdout="said", stderr="beside\n")


async def test_more_than_a_pipe_holds_goes_both_ways() -> None:
    text = b"x" * 1_000_000
    ended = await run("cat", stdin=text, max_output=len(text))
    assert (ended.status, ended.stdout) == (0, text.decode())


async def test_a_program_that_reads_nothing_is_not_waited_for() -> None:
    assert (await run("true", stdin=b"x" * 1_000_000)).status == 0


async def test_a_signal_is_told_as_one() -> None:
    assert (await run("sh", "-c", "kill -SEGV $$")).status == -11


async def test_a_program_that_closes_its_output_and_goes_on_is_waited_for() -> None:
    ended = await run("sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 3")
    assert ended.status == 3


async def test_a_child_that_holds_the_output_open_is_not_waited_for() -> None:
    ended = await run("sh", "-c", "sleep 600 & echo done", timeout_s=60)
    assert (ended.status, ended.stdout) == (0, "done\n")


async def test_a_program_that_ignores_signals_ends_with_its_time() -> None:
    ended = await run("sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done", timeout_s=0.3)
    assert ended.status is None


async def test_a_program_that_is_not_there_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match="'no-such-program' cannot be started"):
        await run("no-such-program")


async def test_bytes_that_are_no_text_are_replaced() -> None:
    assert (await run(sys.executable, "-c", "import os; os.write(1, b'\\xff!')")).stdout == "\ufffd!"


def test_programs_are_started_from_many_uvloops_at_once() -> None:
    """What Ray's workers have: asyncio's own subprocesses raise there, for uvloop starts one at a time in a process."""
    uvloop = pytest.importorskip("uvloop")
    outcomes: list[Any] = []
    together = threading.Barrier(8)

    async def many() -> list[Finished]:
        together.wait(10)
        return await asyncio.gather(*(run("echo", "here") for _ in range(4)))

    def work() -> None:
        try:
            outcomes.extend(asyncio.Runner(loop_factory=uvloop.new_event_loop).run(many()))
        except BaseException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes == [Finished(status=0, stdout="here\n", stderr="")] * 32
