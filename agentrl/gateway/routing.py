"""Which engine takes a call. Pure: no clock, no I/O; the pool feeds it what it sees.

An engine is routable when it is healthy, not held back by the admin, and has the current version. The current version
never falls: it is the lowest version among the engines that could serve and are not behind it, so it rises when the
last of them has taken the new weights (invariant 4). An engine that missed a swap is behind and gets nothing until it
has caught up. A routable engine gets a call when it has room and its breaker admits one: a health check says whether
the server answers, only calls say whether it can generate.

Among those, a session stays with its engine, for its prefix cache. Its first call goes where its prompt's beginning was
seen, as long as the engines stay evenly loaded; otherwise to the least loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentrl.breaker import Breaker, BreakerPolicy
from agentrl.gateway.affinity import SeenPrefixes, prefix_chain
from agentrl.gateway.refusal import Refusal
from agentrl.types import EngineStatus

FAILURES_TO_UNHEALTHY = 3
"""Health checks in a row that must fail; a request that finds the engine dead counts at once."""

SKEW_SHARE = 8
"""`max_skew` is by default one part in so many of what an engine runs at once: room for a usual group of siblings on
one engine, and at most an eighth of its places idle for it on another."""

Choice = Literal["sticky", "rebalanced", "prefix", "least_loaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a call asks of its engine."""

    session_id: str
    prompt_ids: Sequence[int] = ()
    at_least: int | None = None  # the oldest version that may serve it
    exactly: int | None = None  # the only version that may serve it

    @property
    def kind(self) -> tuple[int | None, int | None]:
        """All that decides whether an engine may serve it."""
        return self.at_least, self.exactly

    def met_by(self, version: int) -> bool:
        return (self.at_least is None or version >= self.at_least) and self.exactly in (None, version)


@dataclass(slots=True, eq=False)
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
    breaker: Breaker = field(default_factory=lambda: Breaker(BreakerPolicy()), repr=False)
    sessions: set[str] = field(default_factory=set, repr=False)  # those that stay with it
    prefixes: SeenPrefixes = field(default_factory=SeenPrefixes, repr=False)  # of its version, since it came up

    @property
    def load(self) -> tuple[int, int]:
        """What makes one engine less loaded than another: calls first, then the sessions that will make more."""
        return self.in_flight, len(self.sessions)

    def serves(self, version: int) -> None:
        """Another version's prefix cache is of no use."""
        if version != self.version:
            self.version = version
            self.prefixes.clear()


class RoutingTable:
    """`max_in_flight` bounds the calls that one engine is given; it runs `engine_concurrency` of them at once.

    `max_skew` is how many calls, and how many sessions, an engine may get ahead of the least loaded one because it has
    seen a prompt.
    """

    def __init__(
        self,
        *,
        max_in_flight: int,
        engine_concurrency: int = 64,
        max_skew: int | None = None,
        breaker: BreakerPolicy | None = None,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._concurrency = engine_concurrency
        self._max_skew = max(1, engine_concurrency // SKEW_SHARE) if max_skew is None else max_skew
        self._breaker = breaker or BreakerPolicy()
        self._engines: dict[str, EngineState] = {}
        self._sticky: dict[str, EngineState] = {}
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
        engine = self._engines[engine_id] = EngineState(engine_id, url, version, breaker=Breaker(self._breaker))
        self._raise_current()
        return engine

    def get(self, engine_id: str) -> EngineState:
        if (engine := self._engines.get(engine_id)) is None:
            known = ", ".join(self._engines) or "none"
            raise Refusal(404, "engine_not_found", f"there is no engine {engine_id!r}; known: {known}", param="id")
        return engine

    def status(self, engine: EngineState, now: float) -> EngineStatus:
        return EngineStatus(
            id=engine.id,
            url=engine.url,
            healthy=engine.healthy,
            version=engine.version,
            routable=self._up_to_date(engine),
            in_flight=engine.in_flight,
            breaker=engine.breaker.state(now),
            last_error=engine.last_error,
        )

    def remove(self, engine_id: str) -> EngineState:
        """Its sessions get another engine with their next call."""
        engine = self.get(engine_id)
        del self._engines[engine_id]
        self._raise_current()
        return engine

    def tell(self, engine_id: str, *, version: int | None = None, routable: bool | None = None) -> EngineState:
        """What the admin knows better than a health check that is under way."""
        engine = self.get(engine_id)
        engine.revision += 1
        if version is not None:
            engine.serves(version)
        if routable is not None:
            engine.held_back = not routable
        self._raise_current()
        return engine

    def saw_healthy(self, engine: EngineState, version: int, context_length: int, revision: int) -> None:
        """A health check that began at `revision` found the engine well."""
        if not engine.healthy:
            engine.prefixes.clear()  # it may have been restarted
        engine.failures, engine.healthy, engine.last_error = 0, True, None
        engine.context_length = context_length
        if engine.revision == revision:
            engine.serves(version)
        self._raise_current()

    def saw_failure(self, engine: EngineState, error: str, *, fatal: bool = False) -> None:
        engine.failures += 1
        engine.last_error = error
        if fatal or engine.failures >= FAILURES_TO_UNHEALTHY:
            engine.healthy = False
        self._raise_current()

    def take(self, need: Need, now: float) -> tuple[EngineState, Choice] | None:
        """The engine for a call, its load raised by one, and why this one; None when none can serve it now."""
        able = [engine for engine in self._engines.values() if self._can_serve(engine, need, now)]
        if not able:
            return None
        engine, choice = self._choose(need, able)
        engine.in_flight += 1
        engine.breaker.admit(now)
        return engine, choice

    def release(self, engine: EngineState) -> None:
        engine.in_flight -= 1
        if not engine.in_flight:
            engine.breaker.withdrawn()  # calls are not told apart here, but now none can be the probe

    def raise_to(self, version: int) -> None:
        """Another routing table of this gateway has it as its current version."""
        self.current_version = max(self.current_version, version)

    def is_past(self, need: Need) -> bool:
        """Whether no engine will ever serve it again, as versions only rise."""
        return need.exactly is not None and need.exactly < self.current_version

    def next_half_open(self, now: float) -> float | None:
        """When the next open breaker lets a probe through."""
        moments = [e.breaker.retry_at for e in self._engines.values() if e.breaker.state(now) == "open"]
        return min((moment for moment in moments if moment is not None), default=None)

    def forget_session(self, session_id: str) -> None:
        if (engine := self._sticky.pop(session_id, None)) is not None:
            engine.sessions.discard(session_id)

    def _choose(self, need: Need, able: list[EngineState]) -> tuple[EngineState, Choice]:
        own = self._sticky.get(need.session_id)
        choice: Choice
        if own is None or own not in able:
            chain = self._chain(need)
            engine, choice = self._for_prompt(chain, able)
        elif own.in_flight < self._concurrency or (idle := self._idle(able)) is None:
            return own, "sticky"
        else:
            chain = self._chain(need)
            engine, choice = idle, "rebalanced"
        engine.prefixes.add(chain)
        self.forget_session(need.session_id)
        self._sticky[need.session_id] = engine
        engine.sessions.add(need.session_id)
        return engine, choice

    def _chain(self, need: Need) -> list[int]:
        """Not worth its time where there is nothing to choose."""
        return prefix_chain(need.prompt_ids) if len(self._engines) > 1 else []

    def _for_prompt(self, chain: list[int], able: list[EngineState]) -> tuple[EngineState, Choice]:
        least = min(able, key=lambda e: e.load)
        fewest = min(len(e.sessions) for e in able)
        even = [
            e
            for e in able
            if e.in_flight - least.in_flight < self._max_skew and len(e.sessions) - fewest < self._max_skew
        ]
        seen = {e.id: e.prefixes.longest(chain) for e in even}
        longest = max(seen.values(), default=0)
        if longest == 0:
            return least, "least_loaded"
        return min((e for e in even if seen[e.id] == longest), key=lambda e: e.load), "prefix"

    def _idle(self, able: list[EngineState]) -> EngineState | None:
        """An engine with more than half of its places free. Moving a session costs a prefill, so less is no reason."""
        least = min(able, key=lambda e: e.load)
        return least if 2 * least.in_flight < self._concurrency else None

    def _up_to_date(self, engine: EngineState) -> bool:
        known = engine.version is not None and engine.version >= self.current_version
        return known and engine.healthy and not engine.held_back

    def _can_serve(self, engine: EngineState, need: Need, now: float) -> bool:
        return (
            self._up_to_date(engine)
            and engine.in_flight < self._max_in_flight
            and engine.version is not None
            and need.met_by(engine.version)
            and engine.breaker.admits(now)
        )

    def _raise_current(self) -> None:
        versions = [e.version for e in self._engines.values() if self._up_to_date(e) and e.version is not None]
        self.current_version = min(versions, default=self.current_version)
