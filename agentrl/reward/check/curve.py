"""How long requests take, and how many items a second come of it, as batches and concurrency grow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from agentrl.reward.check.asking import Asking
from agentrl.reward.check.finding import Finding, Load, warning
from agentrl.reward.check.items import enough
from agentrl.reward.protocol import Item

POINTS = ((1, 1), (8, 1), (32, 1), (1, 8), (8, 8))
"""(batch size, requests at once)."""

MIN_GAIN = 1.3
"""Eight requests at once should give at least this much over one."""

SLOW_MS = 5.0
"""Faster requests gain nothing from company: the client's own time dominates."""


async def measure(asking: Asking, items: Sequence[Item], *, seconds: float) -> list[Load]:
    """About `seconds` at each point. A point at which a request fails is left out."""
    found = []
    for batch_size, at_once in POINTS:
        load = await _point(asking, items, batch_size, at_once, seconds)
        if load is not None:
            found.append(load)
    return found


def serial(curve: Sequence[Load]) -> list[Finding]:
    """Whether company helps: a service that scores one request at a time is slow for a whole run."""
    rates = {(load.batch_size, load.at_once): load for load in curve}
    alone, together = rates.get((1, 1)), rates.get((1, 8))
    if alone is None or together is None or alone.p50_ms < SLOW_MS:
        return []
    gain = together.items_per_s / alone.items_per_s
    if gain >= MIN_GAIN:
        return []
    told = f"8 requests at once give {together.items_per_s:.0f} items/s, one at a time {alone.items_per_s:.0f}"
    return [warning("serial", told, "score requests side by side, or batch them")]


async def _point(asking: Asking, items: Sequence[Item], batch_size: int, at_once: int, seconds: float) -> Load | None:
    times: list[float] = []
    started = time.perf_counter()

    async def one(lane: int) -> bool:
        number = 0
        while time.perf_counter() - started < seconds or number == 0:
            batch = enough(items, batch_size, f"load-{batch_size}-{at_once}-{lane}-{number}")
            answer = await asking.score(batch)
            if not answer.ok:
                return False
            times.append(answer.seconds)
            number += 1
        return True

    if not all(await asyncio.gather(*map(one, range(at_once)))):
        return None
    took = time.perf_counter() - started
    times.sort()
    return Load(
        batch_size=batch_size,
        at_once=at_once,
        p50_ms=1000 * times[len(times) // 2],
        p99_ms=1000 * times[min(len(times) - 1, int(len(times) * 0.99))],
        items_per_s=len(times) * batch_size / took,
    )
