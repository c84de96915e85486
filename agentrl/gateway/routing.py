"""Which engine takes a call. Pure: no clock, no I/O; the pool feeds it what it sees.

An engine is routable when it is healthy, not held back by the admin, has room, and has the current version. The
current version never falls: it is the lowest version among the engines that could serve and are not behind it, so it
rises when the last of them has taken the new weights (invariant 4). An engine that missed a swap is behind and gets
nothing until it has caught up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentrl.gateway.refusal import Refusal
from agentrl.types import EngineStatus

FAILURES_TO_UNHEALTHY = 3
"""Health checks in a row that must fail; a request that finds the engine dead counts at once."""


@dataclass(slots=True)
class EngineState:
    id: str
    url: str
    version: int | None = None
    context_length: int | None = None
    healthy: bool = False
    held_back: bool = False
    in_flight: int = 0
    failures: int = 0
    last_error: str | None = None
    revision: int = field(default=0, repr=False)  # raised by every change the admin makes


class RoutingTable:
    """`max_in_flight` is per engine. A session stays with its engine while that can serve, for its prefix cache."""

    def __init__(self, *, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._engines: dict[str, EngineState] = {}
        self._sticky: dict[str, str] = {}
        self.current_version = 0

    def __iter__(self) -> Iterator[EngineState]:
        return iter(list(self._engines.values()))

    def add(self, url: str, engine_id: str | None = None, version: int | None = None) -> EngineState:
        """Raises Refusal (409) when the id or the URL is there already."""
        for engine in self._engines.values():
            if engine_id == engine.id or url == engine.url:
                raise Refusal(409, "engine_exists", f"engine {engine.id} at {engine.url} is there already", param="url")
        if engine_id is None:
            engine_id = next(
                name for i in range(len(self._engines) + 1) if (name := f"engine-{i}") not in self._engines
            )
        engine = self._engines[engine_id] = EngineState(engine_id, url, version)
        self._raise_current()
        return engine

    def get(self, engine_id: str) -> EngineState:
        if (engine := self._engines.get(engine_id)) is None:
            known = ", ".join(self._engines) or "none"
            raise Refusal(404, "engine_not_found", f"there is no engine {engine_id!r}; known: {known}", param="id")
        return engine

    def status(self, engine: EngineState) -> EngineStatus:
        return EngineStatus(
            id=engine.id,
            url=engine.url,
            healthy=engine.healthy,
            version=engine.version,
            routable=self._up_to_date(engine),
            in_flight=engine.in_flight,
            last_error=engine.last_error,
        )

    def remove(self, engine_id: str) -> EngineState:
        engine = self.get(engine_id)
        del self._engines[engine_id]
        self._raise_current()
        return engine

    def tell(self, engine_id: str, *, version: int | None = None, routable: bool | None = None) -> EngineState:
        """What the admin knows better than a health check that is under way."""
        engine = self.get(engine_id)
        engine.revision += 1
        if version is not None:
            engine.version = version
        if routable is not None:
            engine.held_back = not routable
        self._raise_current()
        return engine

    def saw_healthy(self, engine: EngineState, version: int, context_length: int, revision: int) -> None:
        """A health check that began at `revision` found the engine well."""
        engine.failures, engine.healthy, engine.last_error = 0, True, None
        engine.context_length = context_length
        if engine.revision == revision:
            engine.version = version
        self._raise_current()

    def saw_failure(self, engine: EngineState, error: str, *, fatal: bool = False) -> None:
        engine.failures += 1
        engine.last_error = error
        if fatal or engine.failures >= FAILURES_TO_UNHEALTHY:
            engine.healthy = False
        self._raise_current()

    def take(self, session_id: str) -> EngineState | None:
        """The engine for a session's next call, its load raised by one; None when none can serve now."""
        open_engines = [engine for engine in self._engines.values() if self._can_serve(engine)]
        if not open_engines:
            return None
        sticky = self._sticky.get(session_id)
        engine = next((e for e in open_engines if e.id == sticky), None) or min(open_engines, key=lambda e: e.in_flight)
        self._sticky[session_id] = engine.id
        engine.in_flight += 1
        return engine

    def release(self, engine: EngineState) -> None:
        engine.in_flight -= 1

    def forget_session(self, session_id: str) -> None:
        self._sticky.pop(session_id, None)

    def _up_to_date(self, engine: EngineState) -> bool:
        known = engine.version is not None and engine.version >= self.current_version
        return known and engine.healthy and not engine.held_back

    def _can_serve(self, engine: EngineState) -> bool:
        return self._up_to_date(engine) and engine.in_flight < self._max_in_flight

    def _raise_current(self) -> None:
        versions = [e.version for e in self._engines.values() if self._up_to_date(e) and e.version is not None]
        self.current_version = min(versions, default=self.current_version)
