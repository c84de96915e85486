"""What becomes of items whose request failed, and where requests go. Pure."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.reward.delivery import Parcel, Policy, Waiting, after_outage, after_trouble
from agentrl.reward.lanes import POLICY, Lane, Lanes
from agentrl.reward.protocol import Item


def parcel(*ids: str, useful: bool = True, together: bool = False) -> Parcel:
    loop = asyncio.new_event_loop()
    items = [Waiting(Item(id=one), loop.create_future(), lambda: useful) for one in ids]
    loop.close()
    return Parcel(items, together=together)


def ids(parcels: list[Parcel]) -> list[list[str]]:
    return [[waiting.item.id for waiting in one.items] for one in parcels]


def outage(of: Parcel, policy: Policy, now: float = 0.0, give_up_s: float = 60.0) -> tuple[list[list[str]], list[str]]:
    """(what is sent again, what is given up)."""
    verdict = after_outage(of, now=now, policy=policy, max_attempts=3, give_up_s=give_up_s)
    return ids(verdict.again), [waiting.item.id for waiting in verdict.given_up]


def late(of: Parcel, policy: Policy) -> tuple[list[list[str]], list[str]]:
    """(what is sent again, what nobody can use any more); nothing is given up."""
    verdict = after_outage(of, now=0.0, policy=policy, max_attempts=3, give_up_s=60.0)
    assert verdict.given_up == []
    return ids(verdict.again), [waiting.item.id for waiting in verdict.late]


@pytest.mark.parametrize("policy", ["drop", "fail"])
def test_an_outage_is_waited_for_as_often_as_allowed(policy: Policy) -> None:
    asked = parcel("a", "b")
    assert [outage(asked, policy) for _ in range(3)] == [([["a", "b"]], []), ([["a", "b"]], []), ([], ["a", "b"])]


def test_with_retry_an_outage_is_waited_for_until_the_time_is_up() -> None:
    asked = parcel("a")
    assert outage(asked, "retry", now=100.0) == ([["a"]], [])
    assert outage(asked, "retry", now=159.0) == ([["a"]], [])
    assert outage(asked, "retry", now=160.0) == ([], ["a"])


def test_with_defer_an_outage_is_waited_for_as_long_as_a_score_is_useful() -> None:
    assert outage(parcel("a"), "defer", now=1e9) == ([["a"]], [])
    assert late(parcel("a", useful=False), "defer") == ([], ["a"])


def test_with_retry_nobody_waits_for_a_score_that_cannot_be_used() -> None:
    assert late(parcel("a", useful=False), "retry") == ([], ["a"])


def test_an_item_that_nobody_needs_does_not_take_others_with_it() -> None:
    mixed = parcel("a", "b")
    mixed.items[1].useful = lambda: False
    assert late(mixed, "defer") == ([["a"]], ["b"])


def test_a_group_is_given_up_as_a_whole() -> None:
    group = parcel("a", "b", together=True)
    group.items[1].useful = lambda: False
    assert late(group, "defer") == ([], ["a", "b"])
    waiting = parcel("a", "b", together=True)
    waiting.items[1].failed_at = 40.0
    assert outage(waiting, "retry", now=60.0) == ([["a", "b"]], [])
    assert outage(waiting, "retry", now=100.0) == ([], ["a", "b"])


def test_several_items_of_which_one_may_be_to_blame_are_parted() -> None:
    verdict = after_trouble(parcel("a", "b", "c"), max_attempts=3, successes=0, healthy=False)
    assert verdict is not None
    assert (ids(verdict.again), verdict.given_up) == ([["a"], ["b", "c"]], [])


def alone(of: Parcel, successes: int, healthy: bool = False) -> str:
    verdict = after_trouble(of, max_attempts=3, successes=successes, healthy=healthy)
    return "outage" if verdict is None else "again" if verdict.again else "given up"


def test_one_item_alone_is_given_up_once_the_service_has_answered_others() -> None:
    poisoned = parcel("a")
    assert [alone(poisoned, successes) for successes in (5, 5, 6)] == ["again", "again", "given up"]


def test_one_item_alone_is_given_up_when_the_service_says_it_is_healthy() -> None:
    poisoned = parcel("a")
    assert [alone(poisoned, 5, healthy) for healthy in (False, False, True)] == ["again", "again", "given up"]


def test_a_service_that_fails_for_everybody_is_out() -> None:
    asked = parcel("a")
    assert [alone(asked, 5) for _ in range(4)] == ["again", "again", "outage", "again"]


def test_a_group_that_must_stay_together_is_tried_as_a_whole() -> None:
    group = parcel("a", "b", together=True)
    assert [alone(group, 0, healthy=True) for _ in range(3)] == ["again", "again", "given up"]


@given(st.integers(2, 64))
def test_parting_loses_and_repeats_nothing(count: int) -> None:
    names = [str(index) for index in range(count)]
    first, second = parcel(*names).parted()
    assert ids([first])[0] + ids([second])[0] == names
    assert first.items
    assert second.items


def picked(lanes: Lanes, now: float = 0.0, avoid: Lane | None = None) -> str | None:
    lane = lanes.pick(now, avoid=avoid)
    if lane is None:
        return None
    lanes.begin(lane, now)
    return lane.url


def test_requests_go_round_the_servers() -> None:
    lanes = Lanes(["a", "b", "c"])
    assert [picked(lanes) for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_the_least_busy_server_is_asked() -> None:
    lanes = Lanes(["a", "b"])
    first = lanes.pick(0.0)
    assert first is not None
    lanes.begin(first, 0.0)
    assert picked(lanes) == "b"
    lanes.end(first)
    assert picked(lanes) == "a"


def test_a_server_that_failed_is_avoided_where_there_is_another() -> None:
    lanes = Lanes(["a", "b"])
    failed = lanes.lanes[0]
    assert lanes.pick(0.0, avoid=failed) is not failed
    only = Lanes(["a"])
    assert only.pick(0.0, avoid=only.lanes[0]) is only.lanes[0]


def test_a_server_whose_breaker_is_open_is_left_out_until_it_may_be_tried() -> None:
    lanes = Lanes(["a", "b"])
    out = lanes.lanes[0]
    for _ in range(POLICY.failures):
        out.breaker.failed(10.0, jitter=0.0)
    assert {picked(lanes, 10.0) for _ in range(4)} == {"b"}
    assert lanes.next_try(10.0) == 10.0
    for _ in range(POLICY.failures):
        lanes.lanes[0].breaker.failed(10.0, jitter=0.0)
        lanes.lanes[1].breaker.failed(10.0, jitter=0.0)
    assert picked(lanes, 10.0) is None
    assert lanes.next_try(10.0) == 10.0 + POLICY.backoff_s
    assert picked(lanes, 10.0 + POLICY.backoff_s) is not None
