"""Routing: sticky, near to a prompt's cache, evenly loaded, and never to an engine that is behind.

Its rules under any order of events are in test_gateway_pool_rules.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_builders import end_all, table, take, taken

from agentrl.gateway.refusal import Refusal
from agentrl.gateway.routing import Need, RoutingTable


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
    assert taken(routing, "a") == "e0"
    assert taken(routing, "b") is None
    routing.release(routing.get("e0"))
    assert taken(routing, "b") == "e0"


def test_an_engine_is_known_by_id_and_url_once() -> None:
    routing = table(0)
    with pytest.raises(Refusal, match="there already"):
        routing.add("http://e0")
    with pytest.raises(Refusal, match="known: e0"):
        routing.get("e7")


def test_sessions_that_idle_count_when_calls_do_not_decide() -> None:
    routing = table(0, 0)
    chosen = []
    for session in "abcd":
        chosen.append(taken(routing, session))
        end_all(routing)
    assert chosen == ["e0", "e1", "e0", "e1"]


def test_a_first_call_goes_where_most_of_its_prompt_was_seen() -> None:
    routing = table(0, 0, 0, max_skew=4)
    for session, prompt in (("a", [1, 2, 3]), ("b", [1, 2, 4]), ("c", [9])):
        assert taken(routing, session, prompt) is not None
    placed = {session: engine.id for engine in routing for session in engine.sessions}
    assert placed == {"a": "e0", "b": "e0", "c": "e1"}
    assert take(routing, "d", [1, 2, 3, 5]) == (routing.get("e0"), "prefix")
    assert take(routing, "e", [9, 9]) == (routing.get("e1"), "prefix")
    assert take(routing, "f", [7]) == (routing.get("e2"), "least_loaded")


@pytest.mark.parametrize("between_calls", [False, True])
def test_siblings_meet_the_cache_and_do_not_pile_up(between_calls: bool) -> None:
    """Eight episodes of one prompt, all calling at once, or each idle when the next one begins."""
    routing = table(0, 0, max_skew=2)
    for number in range(8):
        assert taken(routing, f"s{number}", [1, 2]) is not None
        if between_calls:
            end_all(routing)
    assert sorted(len(engine.sessions) for engine in routing) in ([3, 5], [4, 4])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2), st.booleans()), max_size=60), st.integers(1, 4))
def test_affinity_never_puts_an_engine_ahead_by_more_than_the_skew(
    calls: list[tuple[int, int, bool]], max_skew: int
) -> None:
    routing = table(0, 0, 0, max_in_flight=100, engine_concurrency=100, max_skew=max_skew)
    for session, prompt, ends in calls:
        got = take(routing, f"s{session}", [prompt, 0])
        assert got is not None
        engine, choice = got
        if choice == "prefix":
            assert engine.in_flight - min(e.in_flight for e in routing) <= max_skew
            assert len(engine.sessions) - min(len(e.sessions) for e in routing) <= max_skew
        if ends:
            routing.release(engine)


@pytest.mark.parametrize("how", ["new version", "restart", "removal"])
def test_what_an_engine_has_seen_is_forgotten_with_its_cache(how: str) -> None:
    routing = table(0, 0, max_skew=4)
    assert taken(routing, "a", [1]) == "e0"
    engine = routing.get("e0")
    if how == "new version":
        routing.tell("e0", version=1)
    elif how == "restart":
        routing.saw_failure(engine, "died", fatal=True)
        routing.saw_healthy(engine, 0, 100, engine.revision)
    else:
        routing.remove("e0")
        again = routing.add("http://e0", "e0")
        routing.saw_healthy(again, 0, 100, again.revision)
    got = take(routing, "b", [1])
    assert got is not None
    assert got[1] == "least_loaded"


def test_a_session_leaves_an_engine_that_queues_for_one_that_idles_and_stays_there() -> None:
    routing = table(0, 0, max_in_flight=100, engine_concurrency=4)
    for _ in range(4):
        assert taken(routing, "a") == "e0"
    assert take(routing, "a") == (routing.get("e1"), "rebalanced")
    end_all(routing)
    assert take(routing, "a") == (routing.get("e1"), "sticky")


def test_a_session_does_not_leave_for_an_engine_that_is_half_busy() -> None:
    routing = table(0, 0, max_in_flight=100, engine_concurrency=4)
    for session in "abab":
        assert taken(routing, session) is not None
    for _ in range(2):
        assert taken(routing, "a") == "e0"
    assert take(routing, "a") == (routing.get("e0"), "sticky")


def test_a_call_that_goes_on_never_gets_older_weights() -> None:
    routing = table(1, 2)
    assert [taken(routing, "a", at_least=2) for _ in range(3)] == ["e1"] * 3
    routing.saw_failure(routing.get("e1"), "died", fatal=True)
    assert taken(routing, "a", at_least=2) is None
    assert taken(routing, "a", at_least=1) == "e0"


def test_a_pinned_session_gets_its_version_only_and_knows_when_that_has_gone() -> None:
    routing = table(1, 2)
    pinned = Need(session_id="a", exactly=1)
    assert taken(routing, "a", exactly=1) == "e0"
    routing.tell("e0", routable=False)
    assert taken(routing, "a", exactly=1) is None
    assert routing.is_past(pinned)  # e0 missed version 2, so it gets nothing until it has it
    assert not routing.is_past(Need(session_id="a", exactly=3))


def test_a_pinned_session_waits_while_its_version_may_come_back() -> None:
    routing = table(1)
    routing.saw_failure(routing.get("e0"), "died", fatal=True)
    assert taken(routing, "a", exactly=1) is None
    assert not routing.is_past(Need(session_id="a", exactly=1))


def test_adding_and_removing_engines_leaves_the_sessions_of_others_where_they_are() -> None:
    routing = table(0, 0)
    for session in "abcd":
        assert taken(routing, session) is not None
    placed = {session: engine.id for engine in routing for session in engine.sessions}
    added = routing.add("http://e2", "e2")
    routing.saw_healthy(added, 0, 100, 0)
    routing.remove("e0")
    for session in (s for s, engine_id in placed.items() if engine_id == "e1"):
        assert taken(routing, session) == "e1"
    assert taken(routing, "new") == "e2"


def test_the_default_skew_is_an_eighth_of_what_an_engine_runs_at_once() -> None:
    routing = RoutingTable(max_in_flight=100, engine_concurrency=32)
    for number in range(2):
        engine = routing.add(f"http://e{number}")
        routing.saw_healthy(engine, 0, 100, 0)
    assert [taken(routing, str(number), [1]) for number in range(5)] == ["engine-0"] * 4 + ["engine-1"]
