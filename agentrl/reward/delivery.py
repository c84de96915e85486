"""What happens to items whose request failed: asked again, apart, or given up. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl.errors import RewardError
from agentrl.reward.protocol import Item, Score

Policy = Literal["retry", "defer", "drop", "fail"]


class Outage(RewardError):
    """The service could not be reached or said that it is not able to answer now: no item is to blame. May pass."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after_s


class Trouble(RewardError):
    """The service failed at a request, or its answer was broken or late: perhaps for one of the items. May pass."""


class Refused(RewardError):
    """The service will not take a request like this, however often it comes. A smaller one it might."""


@dataclass(eq=False)
class Waiting:
    """One item on its way to a score. `useful` says whether anybody can still use one."""

    item: Item
    score: asyncio.Future[Score]  # done, too, when whoever asked has gone
    useful: Callable[[], bool]
    failed_at: float | None = None  # since when the service has been out for it
    successes: int = 0  # of the service, when the item failed alone for the first time


@dataclass(eq=False)
class Parcel:
    """Items of one request. `together` ones, a group's, are never parted."""

    items: list[Waiting]
    together: bool = False
    outages: int = 0  # in a row
    failures: int = 0  # alone
    avoid: Any = None  # the lane that failed last

    def parted(self) -> tuple[Parcel, Parcel]:
        half = len(self.items) // 2
        return Parcel(self.items[:half]), Parcel(self.items[half:])


@dataclass(frozen=True)
class Verdict:
    """Of a parcel that failed: what is sent again, after how long, and which items are given up."""

    again: list[Parcel] = field(default_factory=list)
    given_up: list[Waiting] = field(default_factory=list)
    late: list[Waiting] = field(default_factory=list)  # nobody can use a score any more: no failure of the service


def after_outage(parcel: Parcel, *, now: float, policy: Policy, max_attempts: int, give_up_s: float) -> Verdict:
    """Nobody is to blame: by `policy`, wait for the service or give up."""
    parcel.outages += 1
    for waiting in parcel.items:
        waiting.failed_at = now if waiting.failed_at is None else waiting.failed_at
    if policy in ("drop", "fail"):
        return Verdict(given_up=parcel.items) if parcel.outages >= max_attempts else Verdict([parcel])
    late = [waiting for waiting in parcel.items if not waiting.useful()]
    if parcel.together and late:
        return Verdict(late=parcel.items)
    there = [waiting for waiting in parcel.items if waiting not in late]
    if policy == "retry" and (long := [one for one in there if now - (one.failed_at or now) >= give_up_s]):
        gone = there if parcel.together else long
    else:
        gone = []
    parcel.items = [waiting for waiting in there if waiting not in gone]
    return Verdict([parcel] if parcel.items else [], gone, late)


def after_refusal(parcel: Parcel) -> Verdict:
    """Too large, or with an item that the service does not take: several are parted, one alone is given up."""
    if len(parcel.items) > 1 and not parcel.together:
        return Verdict(list(parcel.parted()))
    return Verdict(given_up=parcel.items)


def after_trouble(parcel: Parcel, *, max_attempts: int, successes: int, healthy: bool) -> Verdict | None:
    """Perhaps one item is to blame: several are parted to find it; one alone is given up after `max_attempts`.

    None when the service failed for everybody since (no success, and not healthy): that is an outage.
    """
    if len(parcel.items) > 1 and not parcel.together:
        return Verdict(list(parcel.parted()))
    parcel.failures += 1
    if parcel.failures == 1:
        for waiting in parcel.items:
            waiting.successes = successes
    if parcel.failures < max_attempts:
        return Verdict([parcel])
    if healthy or successes > parcel.items[0].successes:
        return Verdict(given_up=parcel.items)
    parcel.failures = 0
    return None
