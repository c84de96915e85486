"""The engines of a gateway by run: those of the admin serve every run that has none of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from agentrl.gateway.engines import EnginePool
from agentrl.gateway.routing import EngineState


class Pools:
    """`None` for a run is the admin. A run has a pool of its own from its first engine to its last."""

    def __init__(self, new_pool: Callable[[], EnginePool]) -> None:
        self._new_pool = new_pool
        self.shared = new_pool()
        self._of_run: dict[str, EnginePool] = {}

    def __iter__(self) -> Iterator[EnginePool]:
        return iter([self.shared, *self._of_run.values()])

    def by_run(self) -> Iterator[tuple[str, EnginePool]]:
        """The shared ones under the name ""."""
        return iter([("", self.shared), *self._of_run.items()])

    @property
    def engines(self) -> Iterator[EngineState]:
        return (engine for pool in self for engine in pool.table)

    def serving(self, run_id: str | None) -> EnginePool:
        """The pool that takes the calls of a run."""
        if run_id is None:
            return self.shared
        return self._of_run.get(run_id, self.shared)

    def own(self, run_id: str | None) -> EnginePool:
        """The pool whose engines a run may change: an empty one that serves nobody, for a run that added none."""
        if run_id is None:
            return self.shared
        return self._of_run.get(run_id) or self._new_pool()

    async def add(self, run_id: str | None, url: str, engine_id: str | None, version: int | None) -> EngineState:
        """The first engine of a run takes it off the shared ones. Raises Refusal (409) for one that is there."""
        pool = self.own(run_id)
        if run_id is not None:
            self._of_run[run_id] = pool
        return await pool.add(url, engine_id, version)

    async def remove(self, run_id: str | None, engine_id: str) -> None:
        """A run whose last engine went is served by the shared ones again. Raises Refusal (404)."""
        pool = self.own(run_id)
        await pool.remove(engine_id)
        if run_id is not None and self._of_run.get(run_id) is pool and not list(pool.table):
            del self._of_run[run_id]
            await pool.close()

    def forget_session(self, session_id: str) -> None:
        """In every pool: its run may have had other engines when it began."""
        for pool in self:
            pool.table.forget_session(session_id)

    async def close(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self))
