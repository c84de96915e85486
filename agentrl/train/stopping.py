"""How a run is asked to end in order: between two steps, so that a checkpoint of what was trained can follow."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from agentrl.errors import Interrupted

T = TypeVar("T")


class Stopping:
    """Belongs to one event loop; `ask` is called in it."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._heeded = False

    def ask(self) -> bool:
        """Whether the run ends by itself now. If not, it has to be cancelled."""
        self._asked.set()
        return self._heeded

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Inside, the run ends by itself once it was asked to."""
        self._heeded = True
        try:
            yield
        finally:
            self._heeded = False

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives. Raises Interrupted, with the work cancelled, when the run was asked to end."""
        working, asked = asyncio.create_task(work), asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait((working, asked), return_when=asyncio.FIRST_COMPLETED)
            if self._asked.is_set():
                raise Interrupted("the run was asked to end")
            return working.result()
        finally:
            working.cancel()
            asked.cancel()
            await asyncio.gather(working, asked, return_exceptions=True)
