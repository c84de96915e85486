"""A gateway in a thread of its own, for clients that know nothing of asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gateway_builders import Served, serving

from agentrl.engine.scripted import Script

WAIT_S = 30.0


@contextmanager
def threaded(*scripts: Script, **options: Any) -> Iterator[Served]:
    """`serving` with the same arguments. Only `served.server.url`, `admin_key` and the engines' state may be read."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway", daemon=True)
    thread.start()
    context = serving(*scripts, **options)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(WAIT_S)
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()
