"""The engines of a gateway by run: those of the admin serve every run that has none of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from agentrl.gateway.engines import EnginePool
from agentrl.gateway.routing import EngineState


class Pools:
    def __init__(self, new_pool: Callable[[], EnginePool]) -> None:
        self._new_pool = new_pool
        self.shared = new_pool()
        self._of_run: dict[str, EnginePool] = {}

    def __iter__(self) -> Iterator[EnginePool]:
        return iter([self.shared, *self._of_run.values()])

    @property
    def engines(self) -> Iterator[EngineState]:
        return (engine for pool in self for engine in pool.table)

    def serving(self, run_id: str | None) -> EnginePool:
        """The pool that takes the calls of a run."""
        if run_id is None:
            return self.shared
        return self._of_run.get(run_id, self.shared)

    def own(self, run_id: str | None) -> EnginePool:
        """The pool whose engines a run may change."""
        if run_id is None:
            return self.shared
        if run_id not in self._of_run:
            self._of_run[run_id] = self._new_pool()
        return self._of_run[run_id]

    async def drop_if_empty(self, run_id: str | None) -> None:
        """A run whose last engine went is served by the shared ones again."""
        if run_id is not None and run_id in self._of_run and not list(self._of_run[run_id].table):
            await self._of_run.pop(run_id).close()

    async def close(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self))
