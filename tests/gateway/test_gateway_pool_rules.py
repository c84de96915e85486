"""The rules of routing, held under any order of events: the real pool, table, queue and breakers in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from routing_builders import Twin, VirtualLoop

from agentrl.breaker import BreakerPolicy
from agentrl.errors import EngineError, EngineUnavailable
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.routing import Choice, EngineState, Need, RoutingTable

ROOM, WAIT_S, MAX_WAITING = 2, 100.0, 6
ENGINES = st.sampled_from(["e0", "e1", "e2"])
VERSIONS = st.integers(0, 2)
WANTED = st.none() | VERSIONS


@dataclass(eq=False)
class CallUnderWay:
    serial: int
    session: str
    kind: tuple[int | None, int | None]
    begun: float
    ahead: int  # calls that waited when it came
    task: asyncio.Task[EngineState]


@dataclass
class Grant:
    serial: int
    kind: tuple[int | None, int | None]


class CheckedTable(RoutingTable):
    """Looks at each engine that is given to a call. The serial number of the call is its prompt."""

    grants: list[Grant]

    def take(self, need: Need, now: float) -> tuple[EngineState, Choice] | None:
        taken = super().take(need, now)
        if taken is not None:
            engine = taken[0]
            assert engine in list(self)
            assert engine.healthy
            assert not engine.held_back
            assert engine.version is not None
            assert engine.version >= max(self.current_version, need.at_least or 0)
            assert need.exactly in (None, engine.version)
            assert engine.in_flight <= ROOM
            assert engine.breaker.state(now) != "open"
            assert not engine.breaker.admits(now) or engine.breaker.state(now) == "closed"
            self.grants.append(Grant(need.prompt_ids[0], need.kind))
        return taken


class Routing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.table = CheckedTable(
            max_in_flight=ROOM,
            engine_concurrency=2,
            breaker=BreakerPolicy(failures=2, backoff_s=1, max_backoff_s=8),
        )
        self.table.grants = []
        self.pool = EnginePool(
            Twin, self.table, health_every_s=1e9, wait_s=WAIT_S, max_waiting=MAX_WAITING, jitter=lambda: 0.0
        )
        self.calls = 0
        self.waiting: list[CallUnderWay] = []
        self.at_engines: list[EngineState] = []  # one entry per call, of engines that are gone too
        self.highest_current = 0

    def teardown(self) -> None:
        for call in self.waiting:
            call.task.cancel()
        self.loop.run_until_complete(self.pool.close())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    @initialize(versions=st.lists(VERSIONS, min_size=1, max_size=2))
    def some_engines(self, versions: list[int]) -> None:
        for number, version in enumerate(versions):
            self.adds(f"e{number}", version)

    @rule(name=ENGINES, version=VERSIONS)
    def adds(self, name: str, version: int) -> None:
        if name not in {engine.id for engine in self.table}:
            settled = self.settled()
            self.do(self.pool.add, f"http://{name}/v{version}", name)
            assert settled.items() <= self.placed().items()

    @rule(name=ENGINES)
    def removes(self, name: str) -> None:
        if (engine := self.known(name)) is not None:
            others = {session: at for session, at in self.settled().items() if at is not engine}
            self.do(self.pool.remove, name)
            assert others.items() <= self.placed().items()

    @rule(name=ENGINES, version=WANTED, routable=st.none() | st.booleans())
    def told(self, name: str, version: int | None, routable: bool | None) -> None:
        if self.known(name) is not None:
            self.loop.call_soon(lambda: self.pool.tell(name, version=version, routable=routable))
            self.settle()

    @rule(session=st.sampled_from("abcd"), at_least=WANTED, exactly=WANTED)
    def calls_with_a_wish(self, session: str, at_least: int | None, exactly: int | None) -> None:
        self.call(session, at_least, exactly)

    @rule(session=st.sampled_from("abcdefgh"))
    def calls_without(self, session: str) -> None:
        self.call(session, None, None)

    @precondition(lambda self: self.at_engines)
    @rule(data=st.data(), how=st.sampled_from(["succeeds", "dies", "lies", "begins", "tells nothing"]))
    def ends(self, data: st.DataObject, how: str) -> None:
        engine = data.draw(st.sampled_from(self.at_engines))

        def end() -> None:
            if how == "succeeds":
                self.pool.succeeded(engine)
            elif how == "begins":
                self.pool.answering(engine)
            elif how != "tells nothing":
                self.pool.failed(engine, EngineUnavailable("died") if how == "dies" else EngineError("lied"))
            self.at_engines.remove(engine)
            self.pool.release(engine)

        self.loop.call_soon(end)
        self.settle()

    @rule(name=ENGINES, version=VERSIONS)
    def is_seen_healthy(self, name: str, version: int) -> None:
        if (engine := self.known(name)) is not None:
            attached = self.pool._attached[name]
            assert isinstance(attached.client, Twin)
            attached.client.serves = version
            self.do(self.pool._check, attached)
            assert engine.healthy

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 8.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.now += seconds
        self.settle()

    @rule(session=st.sampled_from("abcd"), seconds=st.sampled_from([1.0, 8.0]))
    def calls_before_a_timer_that_is_due_has_run(self, session: str, seconds: float) -> None:
        self.loop.now += seconds
        self.call(session, None, None)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.waiting)).task.cancel()
        self.settle()

    @invariant()
    def the_current_version_never_falls(self) -> None:
        assert self.table.current_version >= self.highest_current
        self.highest_current = self.table.current_version

    @invariant()
    def load_is_counted_exactly(self) -> None:
        for engine in {*self.table, *self.at_engines}:
            assert engine.in_flight == sum(other is engine for other in self.at_engines)

    @invariant()
    def nobody_waits_beside_an_engine_that_could_serve_or_for_a_version_that_is_gone(self) -> None:
        assert self.pool.waiting == len(self.waiting) <= MAX_WAITING
        for call in self.waiting:
            at_least, exactly = call.kind
            for engine in self.table:
                version = -1 if engine.version is None else engine.version
                assert not (
                    engine.healthy
                    and not engine.held_back
                    and version >= max(self.table.current_version, at_least or 0)
                    and exactly in (None, version)
                    and engine.in_flight < ROOM
                    and engine.breaker.admits(self.loop.now)
                )
            assert exactly is None or exactly >= self.table.current_version

    def known(self, name: str) -> EngineState | None:
        return next((engine for engine in self.table if engine.id == name), None)

    def placed(self) -> dict[str, EngineState]:
        return {session: engine for engine in self.table for session in engine.sessions}

    def settled(self) -> dict[str, EngineState]:
        """Where the sessions are that have no call waiting, which could be served elsewhere meanwhile."""
        waiting = {call.session for call in self.waiting}
        return {session: engine for session, engine in self.placed().items() if session not in waiting}

    def call(self, session: str, at_least: int | None, exactly: int | None) -> None:
        self.calls += 1
        wish = self.pool.acquire(session, prompt_ids=[self.calls], at_least=at_least, exactly=exactly)
        task = self.loop.create_task(wish)
        self.waiting.append(
            CallUnderWay(self.calls, session, (at_least, exactly), self.loop.now, self.pool.waiting, task)
        )
        self.settle()

    def do(self, action: object, *arguments: object) -> None:
        self.loop.run_until_complete(action(*arguments))  # type: ignore[operator]
        self.settle()

    def settle(self) -> None:
        """Runs all that can run now, and takes note of the calls that have ended their wait."""
        self.loop.settle()
        self.check_order()
        for call in [call for call in self.waiting if call.task.done()]:
            self.waiting.remove(call)
            if call.task.cancelled():
                continue
            if (error := call.task.exception()) is None:
                self.at_engines.append(call.task.result())
                continue
            assert isinstance(error, Refusal)
            if error.status == 409:
                assert call.kind[1] is not None
                assert call.kind[1] < self.table.current_version
            elif error.status == 503:
                assert self.loop.now >= call.begun + WAIT_S
            else:
                assert (error.status, call.ahead) == (429, MAX_WAITING)

    def check_order(self) -> None:
        """Among calls that ask for the same, none is served before one that came earlier and still waits."""
        for grant in self.table.grants:
            for call in self.waiting:
                earlier = call.kind == grant.kind and call.serial < grant.serial
                assert not (earlier and not call.task.done())
        self.table.grants.clear()


TestRouting = Routing.TestCase
TestRouting.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
