"""Routing: least loaded among those that have the current version, sticky, and never to an engine that is behind."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentrl.gateway.refusal import Refusal
from agentrl.gateway.routing import EngineState, RoutingTable


def table(*versions: int, max_in_flight: int = 8) -> RoutingTable:
    """Healthy engines e0, e1, … that serve these versions."""
    made = RoutingTable(max_in_flight=max_in_flight)
    for number in range(len(versions)):
        made.add(f"http://e{number}", f"e{number}")
    for engine, version in zip(made, versions, strict=True):
        made.saw_healthy(engine, version, 100, engine.revision)
    return made


def taken(routing: RoutingTable, session_id: str) -> str | None:
    engine = routing.take(session_id)
    return engine.id if engine else None


def test_the_least_loaded_engine_is_taken_and_a_session_stays_with_its_own() -> None:
    routing = table(0, 0)
    assert [taken(routing, s) for s in ("a", "b", "a", "a")] == ["e0", "e1", "e0", "e0"]
    assert taken(routing, "c") == "e1"


def test_a_session_moves_when_its_engine_cannot_serve() -> None:
    routing = table(0, 0)
    assert taken(routing, "a") == "e0"
    routing.saw_failure(routing.get("e0"), "died", fatal=True)
    assert taken(routing, "a") == "e1"


def test_during_a_staggered_swap_both_versions_serve_until_the_last_engine_has_it() -> None:
    routing = table(0, 0)
    routing.tell("e0", version=1)
    assert routing.current_version == 0
    assert {taken(routing, s) for s in ("a", "b")} == {"e0", "e1"}
    routing.tell("e1", version=1)
    assert routing.current_version == 1


def test_an_engine_that_missed_a_swap_gets_nothing_until_it_has_it() -> None:
    routing = table(0, 0)
    routing.tell("e1", routable=False)
    routing.tell("e0", version=1)
    routing.tell("e1", routable=True)
    assert routing.current_version == 1
    assert {taken(routing, s) for s in ("a", "b", "c")} == {"e0"}
    routing.tell("e1", version=1)
    assert taken(routing, "d") == "e1"


def test_an_engine_that_restarts_with_old_weights_is_behind() -> None:
    routing = table(3, 3)
    restarted = routing.get("e0")
    routing.saw_healthy(restarted, 0, 100, restarted.revision)
    assert routing.current_version == 3
    assert {taken(routing, s) for s in ("a", "b", "c")} == {"e1"}


def test_a_health_check_that_began_before_the_admin_spoke_does_not_undo_it() -> None:
    routing = table(0)
    engine = routing.get("e0")
    began = engine.revision
    routing.tell("e0", version=1)
    routing.saw_healthy(engine, 0, 100, began)
    assert engine.version == 1


def test_one_failed_health_check_is_forgiven_and_three_are_not() -> None:
    routing = table(0)
    engine = routing.get("e0")
    for healthy in (True, True, False):
        routing.saw_failure(engine, "slow")
        assert engine.healthy is healthy


def test_a_full_engine_takes_no_more_until_it_gives_one_back() -> None:
    routing = table(0, max_in_flight=1)
    engine = routing.take("a")
    assert engine is not None
    assert routing.take("b") is None
    routing.release(engine)
    assert routing.take("b") is engine


def test_an_engine_is_known_by_id_and_url_once() -> None:
    routing = table(0)
    with pytest.raises(Refusal, match="there already"):
        routing.add("http://e0")
    with pytest.raises(Refusal, match="known: e0"):
        routing.get("e7")


class Swaps(RuleBasedStateMachine):
    """Engines die, come back with any version, are held back and told of versions, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.routing = table(0, 0, 0)
        self.highest_current = 0
        self.load: list[EngineState] = []

    @rule(number=st.integers(0, 2), version=st.integers(0, 5))
    def told(self, number: int, version: int) -> None:
        self.routing.tell(f"e{number}", version=version)

    @rule(number=st.integers(0, 2), routable=st.booleans())
    def held(self, number: int, routable: bool) -> None:
        self.routing.tell(f"e{number}", routable=routable)

    @rule(number=st.integers(0, 2))
    def dies(self, number: int) -> None:
        self.routing.saw_failure(self.routing.get(f"e{number}"), "died", fatal=True)

    @rule(number=st.integers(0, 2), version=st.integers(0, 5))
    def comes_back(self, number: int, version: int) -> None:
        engine = self.routing.get(f"e{number}")
        self.routing.saw_healthy(engine, version, 100, engine.revision)

    @rule(session=st.sampled_from("abcd"))
    def call(self, session: str) -> None:
        engine = self.routing.take(session)
        if engine is None:
            return
        assert engine.healthy
        assert not engine.held_back
        assert engine.version is not None
        assert engine.version >= self.routing.current_version
        self.load.append(engine)

    @precondition(lambda self: self.load)
    @rule()
    def ends(self) -> None:
        self.routing.release(self.load.pop())

    @invariant()
    def the_current_version_never_falls(self) -> None:
        assert self.routing.current_version >= self.highest_current
        self.highest_current = self.routing.current_version

    @invariant()
    def load_is_counted_exactly(self) -> None:
        assert sum(engine.in_flight for engine in self.routing) == len(self.load)


TestSwaps = Swaps.TestCase
TestSwaps.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
