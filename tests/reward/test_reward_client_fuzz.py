"""Whatever a service does, each item gets one score or one error, its own, and nothing is left in the client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.breaker import BreakerPolicy
from agentrl.errors import RewardError
from agentrl.reward import client as client_module
from agentrl.reward import lanes
from agentrl.reward.client import RewardClient
from agentrl.reward.config import ServiceConfig
from agentrl.reward.delivery import Outage, Policy, Refused, Trouble
from agentrl.reward.protocol import Item, Score
from agentrl.reward.room import Room

FAULTS = ("outage", "busy", "trouble", "not taken", "refused", "bug")
TOO_LONG_S = 20.0  # for what takes milliseconds: reached by a deadlock only


def reward_of(item_id: str) -> float:
    return float(item_id.removeprefix("e")) / 10


@dataclass
class Wire:
    """In place of the HTTP: answers each request as the plan says, after some turns of the event loop."""

    faults: Iterator[str]
    turns: Iterator[int]
    poisoned: frozenset[str] = frozenset()
    in_flight: int = 0
    most_in_flight: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    sizes: list[int] = field(default_factory=list)
    requests: int = 0
    at_request: dict[int, Any] = field(default_factory=dict)  # what happens when so many were sent

    async def score(self, url: str, items: Sequence[Item]) -> dict[str, Score]:
        self.requests += 1
        self.asked.update(item.id for item in items)
        self.sizes.append(len(items))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if (happens := self.at_request.pop(self.requests, None)) is not None:
                happens()
            for _ in range(next(self.turns, 1)):
                await asyncio.sleep(0)
            return self._answer(items)
        finally:
            self.in_flight -= 1

    def _answer(self, items: Sequence[Item]) -> dict[str, Score]:
        match next(self.faults, "fine"):
            case "outage":
                raise Outage("nobody is there")
            case "busy":
                raise Outage("answered 429", retry_after_s=0.0)
            case "trouble":
                raise Trouble("answered 500")
            case "not taken":
                raise Refused("answered 413")
            case "refused":
                raise RewardError("answered 400")
            case "bug":
                raise ZeroDivisionError("of our own")
        if self.poisoned.intersection(item.id for item in items):
            raise Trouble("answered 500 for the poisoned one")
        return {item.id: Score(id=item.id, reward=reward_of(item.id)) for item in reversed(items)}

    async def healthy(self, url: str) -> str | None:
        await asyncio.sleep(0)
        return None

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True, scope="module")
def hurried() -> Iterator[None]:
    """Waits of seconds are waits of a millisecond."""
    with (
        mock.patch.object(client_module, "MAX_BACKOFF_S", 0.0),
        mock.patch.object(lanes, "POLICY", BreakerPolicy(failures=3, backoff_s=0.001, max_backoff_s=0.002)),
    ):
        yield


def made(wire: Wire, *, servers: int = 1, policy: Policy = "drop", room: int = 64, **settings: Any) -> RewardClient:
    urls = tuple(f"http://127.0.0.1:{number}" for number in range(1, servers + 1))
    service = ServiceConfig(name="judge", urls=urls, batch_wait_s=0.0, **settings)
    with (
        mock.patch.object(client_module, "ServiceWire", return_value=wire),
        mock.patch.object(client_module, "MAX_QUEUED", room),
    ):
        return RewardClient(service, policy=policy, give_up_s=0.005)


def items(first: int, count: int) -> list[Item]:
    return [Item(id=f"e{number}") for number in range(first, first + count)]


async def nothing_is_left(client: RewardClient, wire: Wire) -> None:
    """After everybody has gone: no place taken, no request or timer under way."""
    await client.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert [task.get_name() for task in others if not task.done()] == []
    assert (client._room.taken, client._free, wire.in_flight) == (0, client.service.concurrency, 0)
    assert [list(queue) for queue in (client._new, client._ready, client._later, client._sending)] == [[]] * 4


def assert_own(scores: dict[str, Score], asked: Sequence[Item]) -> None:
    assert scores.keys() == {item.id for item in asked}
    for item_id, score in scores.items():
        assert score.id == item_id
        assert (score.reward is None) == (score.error is not None)
        assert score.reward in (None, reward_of(item_id))


CALLERS = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=8)
SETTINGS = st.fixed_dictionaries(
    {
        "servers": st.integers(1, 3),
        "concurrency": st.integers(1, 4),
        "batch_size": st.integers(1, 6),
        "max_attempts": st.integers(1, 4),
        "room": st.integers(1, 16),
        "policy": st.sampled_from(["retry", "defer", "drop", "fail"]),
    }
)
PLAN = st.lists(st.sampled_from(("fine", *FAULTS)), max_size=40)
TURNS = st.lists(st.integers(0, 4), max_size=40)


@given(CALLERS, SETTINGS, PLAN, TURNS, st.frozensets(st.integers(0, 40).map("e{}".format), max_size=3))
def test_every_item_gets_one_score_or_error_of_its_own_within_the_concurrency(
    callers: list[tuple[int, bool]],
    settings: dict[str, Any],
    plan: list[str],
    turns: list[int],
    poisoned: frozenset[str],
) -> None:
    async def run() -> None:
        wire = Wire(iter(plan), iter(turns), poisoned)
        client = made(wire, **settings)
        asked, first = [], 0
        for count, together in callers:
            asked.append((items(first, count), together))
            first += count
        async with asyncio.timeout(TOO_LONG_S):
            found = await asyncio.gather(*(client.score(some, together=together) for some, together in asked))
        for (some, _), scores in zip(asked, found, strict=True):
            assert_own(scores, some)
        errors = [score for scores in found for score in scores.values() if score.error is not None]
        assert client.stats.failures == len(errors)
        assert client.stats.items == first - len(errors)
        assert wire.most_in_flight <= settings["concurrency"]
        assert max(wire.sizes) <= max(settings["batch_size"], *(len(some) for some, together in asked if together), 1)
        assert {item_id for item_id in poisoned if int(item_id[1:]) < first} <= {score.id for score in errors}
        await nothing_is_left(client, wire)

    asyncio.run(run())


@given(CALLERS, SETTINGS, PLAN, TURNS, st.lists(st.tuples(st.integers(1, 12), st.integers(0, 7)), max_size=4))
def test_callers_that_are_cancelled_leave_nothing_behind_and_take_nothing_from_others(
    callers: list[tuple[int, bool]],
    settings: dict[str, Any],
    plan: list[str],
    turns: list[int],
    cancelled: list[tuple[int, int]],
) -> None:
    """`cancelled`: at which request which caller goes."""

    async def run() -> None:
        wire = Wire(iter(plan), iter(turns))
        client = made(wire, **settings)
        asked, tasks = [], []
        for number, (count, together) in enumerate(callers):
            asked.append(items(100 * number, count))
            tasks.append(asyncio.ensure_future(client.score(asked[-1], together=together)))
        for at, who in cancelled:
            wire.at_request[at] = tasks[who % len(tasks)].cancel
        async with asyncio.timeout(TOO_LONG_S):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        for some, scores in zip(asked, found, strict=True):
            if isinstance(scores, asyncio.CancelledError):
                continue
            assert not isinstance(scores, BaseException)
            assert_own(scores, some)
        await nothing_is_left(client, wire)

    asyncio.run(run())


@given(CALLERS, SETTINGS, PLAN, TURNS, st.integers(1, 12))
def test_closing_the_client_answers_whoever_waits(
    callers: list[tuple[int, bool]], settings: dict[str, Any], plan: list[str], turns: list[int], closed_at: int
) -> None:
    async def run() -> None:
        wire = Wire(iter(plan), iter(turns))
        client = made(wire, **settings)
        closing: list[asyncio.Task[None]] = []
        wire.at_request[closed_at] = lambda: closing.append(asyncio.ensure_future(client.close()))
        asked = [items(100 * number, count) for number, (count, _) in enumerate(callers)]
        async with asyncio.timeout(TOO_LONG_S):
            found = await asyncio.gather(
                *(client.score(some, together=callers[number][1]) for number, some in enumerate(asked))
            )
            await asyncio.gather(*closing)
        for some, scores in zip(asked, found, strict=True):
            assert_own(scores, some)
        await nothing_is_left(client, wire)

    asyncio.run(run())


@given(CALLERS, SETTINGS, st.lists(st.sampled_from(["fine", "outage", "busy"]), max_size=30), TURNS)
def test_an_outage_that_is_waited_for_costs_no_item(
    callers: list[tuple[int, bool]], settings: dict[str, Any], plan: list[str], turns: list[int]
) -> None:
    async def run() -> None:
        wire = Wire(iter(plan), iter(turns))
        client = made(wire, **(settings | {"policy": "defer"}))
        asked = [items(100 * number, count) for number, (count, _) in enumerate(callers)]
        async with asyncio.timeout(TOO_LONG_S):
            found = await asyncio.gather(
                *(client.score(some, together=callers[number][1]) for number, some in enumerate(asked))
            )
        assert [score.error for scores in found for score in scores.values() if score.error is not None] == []
        await nothing_is_left(client, wire)

    asyncio.run(run())


async def test_callers_that_wait_for_room_do_not_wait_for_each_other() -> None:
    """Ten groups of seven with room for ten: held place by place, two of them would hold five each for ever."""
    wire = Wire(iter(()), iter(()))
    client = made(wire, room=10, concurrency=2)
    async with asyncio.timeout(TOO_LONG_S):
        found = await asyncio.gather(*(client.score(items(7 * n, 7), together=True) for n in range(10)))
    assert sum(len(scores) for scores in found) == 70
    await nothing_is_left(client, wire)


async def test_a_group_that_is_larger_than_the_room_is_scored() -> None:
    wire = Wire(iter(()), iter(()))
    client = made(wire, room=4)
    async with asyncio.timeout(TOO_LONG_S):
        assert_own(await client.score(items(0, 9), together=True), items(0, 9))
    await nothing_is_left(client, wire)


async def test_a_groups_request_that_always_fails_is_given_up_when_the_service_is_healthy() -> None:
    wire = Wire(iter(()), iter(()), frozenset({"e1"}))
    client = made(wire, policy="defer", max_attempts=3)
    async with asyncio.timeout(TOO_LONG_S):
        scores = await client.score(items(0, 4), together=True)
    assert [score.reward for score in scores.values()] == [None] * 4
    assert wire.sizes == [4, 4, 4]
    await nothing_is_left(client, wire)


async def test_the_time_after_the_last_item_is_no_outage() -> None:
    """The poisoned item opens the breaker, and is given up: nobody waits for the service from then on."""
    wire = Wire(iter(()), iter(()), frozenset({"e0"}))
    client = made(wire, max_attempts=4)
    await client.score(items(0, 1))
    first = client.metrics()["outage_s"]
    await asyncio.sleep(0.01)
    assert client.metrics()["outage_s"] == first > 0
    await nothing_is_left(client, wire)


async def test_places_are_given_in_the_order_of_asking_and_whole() -> None:
    room = Room(4)
    await room.take(3)
    order: list[str] = []

    async def take(name: str, count: int) -> None:
        await room.take(count)
        order.append(name)

    waiting = [asyncio.ensure_future(take("three", 3)), asyncio.ensure_future(take("one", 1))]
    await asyncio.sleep(0)
    assert order == []
    room.leave(3)
    await asyncio.gather(*waiting)
    assert (order, room.taken) == (["three", "one"], 4)


async def test_who_is_cancelled_while_waiting_or_just_let_in_holds_no_place() -> None:
    room = Room(2)
    await room.take(2)
    first, second = (asyncio.ensure_future(room.take(2)) for _ in range(2))
    await asyncio.sleep(0)
    room.leave(2)  # the first is let in, but cannot know it yet
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await second
    assert (first.cancelled(), room.taken) == (True, 2)
    third = asyncio.ensure_future(room.take(1))
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)
    room.leave(2)
    assert room.taken == 0
