"""The whole check of a reward service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import httpx

from agentrl.errors import RewardError
from agentrl.reward.check import probes
from agentrl.reward.check.asking import Asking
from agentrl.reward.check.curve import measure, serial
from agentrl.reward.check.finding import Finding, Load, Report
from agentrl.reward.protocol import Item

STOPPERS = {"health", "request-fails", "shape", "count", "ids"}
"""After these the other probes would only repeat them."""


async def check_service(
    url: str,
    items: Sequence[Item],
    *,
    key: str | None = None,
    bounds: probes.Range | None = None,
    timeout_s: float = 30.0,
    load_s: float = 2.0,
    progress: Callable[[str], None] = lambda what: None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Report:
    """Asks for `items`, at least two, and for variations of them; `load_s` seconds for each point of the curve.

    `bounds` of the rewards where they are declared. `transport` replaces the network in tests.
    """
    findings: list[Finding] = []
    curve: list[Load] = []
    unscored = 0
    async with Asking(url, key=key, timeout_s=timeout_s, transport=transport) as asking:
        progress("health and one batch")
        findings += await probes.guarded(lambda: probes.answers_health(asking))
        findings += await probes.guarded(lambda: probes.answers_in_full(asking, items, bounds))
        if not STOPPERS & {finding.code for finding in findings}:
            for what, probe in _probes(asking, items, key):
                progress(what)
                findings += await probes.guarded(probe)
            progress("latency and throughput")
            curve = await measure(asking, items, seconds=load_s)
            findings += serial(curve)
            unscored = await _unscored(asking, items)
    return Report(url=url, findings=_once(findings), curve=curve, items=len(items), unscored=unscored)


def _probes(
    asking: Asking, items: Sequence[Item], key: str | None
) -> list[tuple[str, Callable[[], AsyncIterator[Finding]]]]:
    found: list[tuple[str, Callable[[], AsyncIterator[Finding]]]] = [
        ("the same ids again", lambda: probes.is_idempotent(asking, items)),
        ("another order", lambda: probes.goes_by_ids(asking, items)),
        ("equal items", lambda: probes.treats_equals_equally(asking, items)),
        ("odd items", lambda: probes.bears_odd_items(asking, items)),
        ("bad requests", lambda: probes.refuses_in_order(asking)),
        ("health under load", lambda: probes.stays_healthy_under_load(asking, items)),
    ]
    if key is not None:
        found.append(("a wrong key", lambda: probes.keeps_its_key(asking, items)))
    return found


async def _unscored(asking: Asking, items: Sequence[Item]) -> int:
    try:
        return sum(score.reward is None for score in (await asking.scores(items)).values())
    except RewardError:  # a finding says so already
        return 0


def _once(findings: Sequence[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))
