"""Which worker has a session: the same answer everywhere, an even one, and caps that add up."""

from __future__ import annotations

from collections import Counter

import pytest
from gateway_builders import renderer
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.client import HttpEngineClient
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.keys import new_admin_key, new_session_key, place_of_key, run_key
from agentrl.gateway.server import GatewayServer
from agentrl.gateway.workers.placement import Placement, place
from agentrl.gateway.workers.shares import config_of_worker

COUNTS = st.integers(1, 64)


@given(session_id=st.text(max_size=300), count=COUNTS)
def test_exactly_one_worker_owns_a_session(session_id: str, count: int) -> None:
    assert [Placement(i, count).owns(session_id) for i in range(count)].count(True) == 1


@given(session_id=st.text(max_size=300), count=COUNTS)
def test_a_sessions_key_names_the_worker_that_owns_it_whatever_their_number(session_id: str, count: int) -> None:
    key = new_session_key(place(session_id))
    at = Placement(0, count)
    assert at.owner_of_key(key) == at.owner(session_id)


def test_the_place_of_an_id_never_changes() -> None:
    """Sessions are found by it after an update too."""
    assert [place(session_id) for session_id in ("a", "session-1", "é")] == [2831059610, 2338391082, 3264321658]


def test_keys_of_others_name_no_worker() -> None:
    for key in (new_admin_key(), run_key("admin", "0123abcd-x"), "sk-agentrl-" + "A" * 43, "", "sk-agentrl-0123abcd"):
        assert place_of_key(key) is None


@given(index=st.integers(0, 63), count=COUNTS)
def test_a_worker_gives_new_sessions_ids_of_its_own(index: int, count: int) -> None:
    at = Placement(index % count, count)
    assert at.owner(at.new_session_id()) == index % count


def test_sessions_with_ids_of_people_are_spread_evenly() -> None:
    """Of 4,000 ids like those that programs number, each of four workers has a quarter, within a tenth of it."""
    owners = Counter(Placement(0, 4).owner(f"task-{i}") for i in range(4000))
    assert all(900 < owners[worker] < 1100 for worker in range(4)), owners


@given(total=st.integers(1, 10_000), count=COUNTS)
def test_the_caps_of_all_workers_add_up_to_the_gateways(total: int, count: int) -> None:
    config = GatewayConfig(max_waiting=total, workers=count)
    shares = [config_of_worker(config, Placement(i, count)).max_waiting for i in range(count)]
    assert sum(shares) == max(total, count)
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("skew", [None, 5])
def test_a_worker_is_configured_as_one_gateway_without_engines(skew: int | None) -> None:
    config = GatewayConfig(workers=2, engine_urls=("http://127.0.0.1:1",), max_skew=skew, engine_concurrency=7)
    worker = config_of_worker(config, Placement(1, 2))
    assert (worker.workers, worker.engine_urls) == (1, ())
    assert (worker.engine_concurrency, worker.max_skew) == (3, None if skew is None else 2)


def test_a_gateway_inside_another_program_is_one_process() -> None:
    with pytest.raises(ConfigError, match=r"gateway.workers is 2, .* run `agentrl serve --workers N`"):
        GatewayServer(GatewayConfig(workers=2), renderer=renderer(), engine_factory=HttpEngineClient)
