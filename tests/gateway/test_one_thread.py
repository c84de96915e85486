"""The commit thread does its jobs in order, and tells who waits of each."""

import asyncio
import gc
import threading
import weakref

import pytest

from agentrl.gateway.one_thread import OneThread


async def test_jobs_run_in_order_in_one_thread_that_is_not_the_loops():
    thread, seen = OneThread("jobs"), list[tuple[int, int]]()

    def job(number: int) -> int:
        seen.append((number, threading.get_ident()))
        return number * 10

    assert await asyncio.gather(*(thread.run(lambda n=n: job(n)) for n in range(50))) == [n * 10 for n in range(50)]
    assert [number for number, _ in seen] == list(range(50))
    assert len({ident for _, ident in seen} | {threading.get_ident()}) == 2
    thread.close()


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(3), StopIteration(1)])
async def test_what_a_job_raises_is_told_and_the_next_one_is_done(error: BaseException):
    thread = OneThread("jobs")

    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
        async with asyncio.timeout(10):
            await thread.run(fail)
    assert await thread.run(lambda: 7) == 7
    thread.close()


async def test_who_stops_waiting_does_not_stop_the_job_nor_those_after_it():
    thread, go, done = OneThread("jobs"), threading.Event(), list[str]()
    waiting = asyncio.create_task(thread.run(lambda: (go.wait(10), done.append("first"))))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    go.set()
    await thread.run(lambda: done.append("second"))
    assert done == ["first", "second"]
    thread.close()


async def test_after_close_what_was_given_is_done_and_no_more_is_taken():
    thread, go = OneThread("jobs"), threading.Event()
    given = asyncio.create_task(thread.run(lambda: go.wait(10)))
    await asyncio.sleep(0)
    thread.close()
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        await thread.run(lambda: None)
    go.set()
    assert await given


async def test_an_idle_thread_holds_nothing_of_its_last_job():
    class Batch:
        """What a job was given."""

    thread, batch = OneThread("jobs"), Batch()
    gone = weakref.ref(batch)
    await thread.run(lambda batch=batch: None)
    del batch
    await thread.run(lambda: None)
    gc.collect()
    assert gone() is None
    thread.close()
