"""Lets one method be awaited by async code and called plainly by everything else (gymnasium's wrappers and checker)."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_MARK = "__agentrl_async__"


def bridged(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """An `async def` method that also works without `await`: see `bridge`."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return bridge(method(*args, **kwargs))

    setattr(call, _MARK, True)
    return call


def bridge(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The coroutine itself where an event loop runs in this thread, else its result.

    Results come from one background loop per process, so what an environment opens on it (HTTP sessions, queues)
    lives from call to call.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        future = asyncio.run_coroutine_threadsafe(_contained(coroutine), _background_loop(os.getpid()))
        try:
            result, exiting = future.result()
        except BaseException:
            future.cancel()
            raise
        if exiting is not None:
            raise exiting from None
        return result
    return coroutine


async def _contained(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """What it gives, or the exception that would end the loop, and with it every later call."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def is_async(method: Callable[..., Any]) -> bool:
    """Whether calling the method inside an event loop gives something to await."""
    return bool(getattr(method, _MARK, False)) or inspect.iscoroutinefunction(method)


def run_to_end(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never suspends, without an event loop.

    Raises RuntimeError when it does suspend.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} suspended, but none of its parts is async")


# Keyed by process: a forked child has the parent's loop object without its thread.
@functools.cache
def _background_loop(pid: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="agentrl-env-loop", daemon=True).start()
    return loop
