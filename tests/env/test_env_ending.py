"""Python code that outlives its limit really ends, in a thread and on a loop; what sits in C code is counted."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import pytest
from living import eventually

from agentrl.env.ending import Abandoned
from agentrl.env.loops import LoopThread
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import EnvironmentFault, EnvironmentTimeout


def threads_called(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def spin() -> None:
    while True:
        pass


async def test_a_loop_that_spins_is_ended_with_its_thread_and_no_longer_counted() -> None:
    hung = HungCalls()
    thread = CallThread("spinner", hung)
    with pytest.raises(EnvironmentTimeout):
        await thread.run(spin, 0.05, "spin")
    thread.close()
    assert await asyncio.to_thread(eventually, lambda: not threads_called("spinner"))
    assert hung.count == 0


async def test_its_clean_up_runs() -> None:
    cleaned = threading.Event()

    def tidy() -> None:
        try:
            spin()
        finally:
            cleaned.set()

    with pytest.raises(EnvironmentTimeout):
        await CallThread("tidy", HungCalls()).run(tidy, 0.05, "spin")
    assert await asyncio.to_thread(cleaned.wait, 20)


async def test_code_that_catches_everything_is_asked_again() -> None:
    caught = []

    def stubborn() -> None:
        while len(caught) < 3:
            try:
                spin()
            except BaseException as error:
                caught.append(type(error))

    hung = HungCalls()
    thread = CallThread("stubborn", hung)
    with pytest.raises(EnvironmentTimeout):
        await thread.run(stubborn, 0.05, "spin")
    thread.close()
    assert await asyncio.to_thread(eventually, lambda: not threads_called("stubborn"))
    assert (caught, hung.count) == ([Abandoned] * 3, 0)


async def test_a_call_that_sits_in_c_code_stays_counted_until_it_returns() -> None:
    reading, writing = os.pipe()
    hung = HungCalls()
    with pytest.raises(EnvironmentTimeout):
        await CallThread("reader", hung).run(lambda: os.read(reading, 1), 0.05, "read")
    assert not await asyncio.to_thread(eventually, lambda: hung.count == 0, 0.5)
    os.write(writing, b"x")
    assert await asyncio.to_thread(eventually, lambda: hung.count == 0)
    os.close(reading)
    os.close(writing)


async def test_a_hundred_calls_that_are_ended_just_as_they_return_leave_the_count_at_zero() -> None:
    """The exception may come anywhere, also in our own code around the call."""
    hung = HungCalls()

    def short() -> None:
        until = time.monotonic() + 0.011
        while time.monotonic() < until:
            pass

    async def one() -> None:
        thread = CallThread("short", hung)
        try:
            await thread.run(short, 0.01, "short")
        except EnvironmentTimeout:
            pass
        finally:
            thread.close()

    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(10)))
    assert await asyncio.to_thread(eventually, lambda: not threads_called("short"))
    assert hung.count == 0


async def test_a_coroutine_that_waits_too_long_is_cancelled_and_its_loop_stays_usable() -> None:
    cleaned = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async def seven() -> int:
        return 7

    loop = LoopThread("waits", HungCalls())
    with pytest.raises(EnvironmentTimeout, match=r"wait took longer than 0\.05 s"):
        await loop.run(waits, 0.05, "wait")
    assert cleaned.is_set()
    assert not loop.abandoned
    assert await loop.run(seven, 5, "seven") == 7
    loop.close()


async def test_a_coroutine_that_spins_is_ended_and_its_loop_abandoned() -> None:
    async def spins() -> None:
        spin()

    hung = HungCalls()
    loop = LoopThread("spins", hung)
    with pytest.raises(EnvironmentTimeout):
        await loop.run(spins, 0.05, "spin")
    assert loop.abandoned
    assert await asyncio.to_thread(eventually, lambda: hung.count == 0)
    with pytest.raises(EnvironmentFault, match="an earlier call of the same environment still hangs"):
        await loop.run(spins, 0.05, "spin")
    loop.close()
    assert await asyncio.to_thread(eventually, lambda: not threads_called("spins"))


async def test_what_it_opened_on_the_loop_lives_between_calls_and_ends_with_it() -> None:
    ticks, ended = [], threading.Event()

    async def tick() -> None:
        try:
            while True:
                ticks.append(len(ticks))
                await asyncio.sleep(0.001)
        finally:
            ended.set()

    kept: list[Any] = []

    async def begin() -> None:
        kept.append(asyncio.create_task(tick()))

    loop = LoopThread("ticks", HungCalls())
    await loop.run(begin, 5, "begin")
    assert await asyncio.to_thread(eventually, lambda: len(ticks) > 3)
    loop.close()
    assert await asyncio.to_thread(ended.wait, 20)
    assert await asyncio.to_thread(eventually, lambda: not threads_called("ticks"))


async def test_a_background_task_that_leaves_costs_nobody_the_loop() -> None:
    async def leaves() -> None:
        raise SystemExit(3)

    kept: list[Any] = []

    async def begin() -> None:
        kept.append(asyncio.create_task(leaves()))

    async def seven() -> int:
        await asyncio.sleep(0.01)
        return 7

    loop = LoopThread("leaves", HungCalls())
    await loop.run(begin, 5, "begin")
    assert await loop.run(seven, 5, "seven") == 7
    loop.close()
    assert await asyncio.to_thread(eventually, lambda: not threads_called("leaves"))


async def test_loops_leave_no_file_open() -> None:
    async def seven() -> int:
        return 7

    async def one(index: int) -> None:
        loop = LoopThread("files", HungCalls())
        assert await loop.run(seven, 5, "seven") == 7
        loop.close()

    await asyncio.to_thread(time.sleep, 0)  # the pool of this loop is up
    before = len(os.listdir("/proc/self/fd"))
    await asyncio.gather(*map(one, range(50)))
    assert await asyncio.to_thread(eventually, lambda: not threads_called("files"))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_hung_loops_are_capped() -> None:
    release, hung = threading.Event(), HungCalls(limit=1)

    async def blocks() -> None:
        release.wait()

    loop = LoopThread("blocks", hung)
    with pytest.raises(EnvironmentTimeout):
        await loop.run(blocks, 0.05, "block")
    with pytest.raises(EnvironmentFault, match="1 environment calls hang"):
        await LoopThread("refused", hung).run(blocks, 0.05, "block")
    release.set()
    loop.close()
    assert await asyncio.to_thread(eventually, lambda: hung.count == 0)


@pytest.mark.parametrize("closed", [False, True])
async def test_a_loop_is_free_again_though_its_ending_hit_the_answer(
    closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Abandoned is raised at any step of a thread: also at the first one of what would have said that it is free."""
    release, hung, hits = threading.Event(), HungCalls(limit=1), [1, 1]
    answer = LoopThread._answer

    def hit_first(self: LoopThread, *arguments: Any) -> None:
        if hits:
            hits.pop()
            raise Abandoned
        answer(self, *arguments)

    monkeypatch.setattr(LoopThread, "_answer", hit_first)

    async def blocks() -> None:
        release.wait()

    loop = LoopThread("blocks", hung)
    with pytest.raises(EnvironmentTimeout):
        await loop.run(blocks, 0.05, "block")
    assert hung.count == 1
    release.set()
    if closed:
        loop.close()
    assert await asyncio.to_thread(eventually, lambda: hung.count == 0)
    loop.close()
