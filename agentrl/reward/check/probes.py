"""What a reward service is tried with. Each probe asks, and yields what is wrong."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from agentrl.errors import RewardError
from agentrl.reward.check.asking import Answer, Asking, as_json
from agentrl.reward.check.finding import Finding, error, warning
from agentrl.reward.check.items import LONG, ODD_TEXTS, enough, renamed, with_text
from agentrl.reward.protocol import Item, Score, request_body

HEALTH_S = 1.0
"""A health check that takes longer while items are scored counts as blocked."""

SAME = 1e-6
"""Rewards that differ by less are equal."""

Range = tuple[float, float]


async def answers_health(asking: Asking) -> AsyncIterator[Finding]:
    answer = await asking.get("/health")
    if not answer.ok:
        yield error("health", f"GET /health {answer.told()}", "answer 200 on GET /health when the service is ready")


async def answers_in_full(asking: Asking, items: Sequence[Item], bounds: Range | None) -> AsyncIterator[Finding]:
    """Shape, count, ids, finiteness, range."""
    answer = await asking.score(items)
    if not answer.ok:
        yield error(
            "request-fails", f"{len(items)} ordinary items: POST /score {answer.told()}", "see the service's log"
        )
        return
    body = as_json(answer.data)
    results = body.get("results") if isinstance(body, dict) else None
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        yield error("shape", f"the answer is {answer.data[:120]!r}", 'answer {"results": [{"id", "reward"}, …]}')
        return
    ids = [result.get("id") for result in results]
    asked = [item.id for item in items]
    if len(results) != len(items):
        yield error("count", f"{len(results)} results for {len(items)} items", "answer every item exactly once")
    unknown = [one for one in ids if one not in asked]
    repeated = sorted({str(one) for one in ids if ids.count(one) > 1})
    if unknown or repeated:
        told = f"unknown ids such as {unknown[0]!r}" if unknown else f"the id {repeated[0]!r} more than once"
        yield error("ids", f"the answer has {told}", "give each result the id of its item")
    faults = (_value_fault(result, bounds) for result in results)
    first = next((fault for fault in faults if fault is not None), None)
    if first is not None:
        yield first


def _value_fault(result: dict[str, object], bounds: Range | None) -> Finding | None:
    reward, told = result.get("reward"), f"the reward of {result.get('id')!r} is {result.get('reward')!r}"
    if reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return error("type", told, "give a number, or null with an error where there is none")
    if not math.isfinite(reward):
        return error("not-finite", told, "give a finite number, or null with an error where there is none")
    if bounds is not None and not bounds[0] <= reward <= bounds[1]:
        return error(
            "range", f"{told}, outside of {bounds[0]:g} to {bounds[1]:g}", "keep to the range that is declared"
        )
    return None


async def is_idempotent(asking: Asking, items: Sequence[Item]) -> AsyncIterator[Finding]:
    first, second = await asking.scores(items), await asking.scores(items)
    if (item := _differing(first, second)) is not None:
        told = f"{item!r} got {first[item].reward} and, asked again, {second[item].reward}"
        yield error("idempotency", told, "remember the score of an id: a retry must not be another draw")


async def goes_by_ids(asking: Asking, items: Sequence[Item]) -> AsyncIterator[Finding]:
    """The same items in reverse, and one alone, under new ids so that nothing is remembered."""
    forward = await asking.scores(renamed(items, "forward"))
    there = list(reversed(renamed(items, "back")))
    back = await asking.scores(there)
    pairs = {f"forward-{index}": back[f"back-{index}"] for index in range(len(items))}
    if (item := _differing(forward, pairs)) is not None:
        told = f"an item got {forward[item].reward}, and {pairs[item].reward} where the batch was reversed"
        yield error("order", told, "score each item by itself, not by its place in the batch")
        return
    alone = (await asking.scores(renamed(items[:1], "alone")))["alone-0"]
    if not _equal(alone, forward["forward-0"]):
        told = f"an item got {forward['forward-0'].reward} in a batch and {alone.reward} alone"
        yield warning("batch", told, "score each item by itself, unless siblings are compared on purpose")


async def treats_equals_equally(asking: Asking, items: Sequence[Item]) -> AsyncIterator[Finding]:
    twins = renamed([items[0]] * 3, "twin")
    found = await asking.scores(twins)
    rewards = {score.reward for score in found.values()}
    if len(rewards) > 1:
        told = f"three equal items got {sorted(map(str, rewards))}"
        yield warning("equals-differ", told, "a score that is partly chance adds noise; average several votes")


async def bears_odd_items(asking: Asking, items: Sequence[Item]) -> AsyncIterator[Finding]:
    """No items, very long ones, and what Unicode has to offer."""
    answer = await asking.score([])
    if not answer.ok or (as_json(answer.data) or {}).get("results") != []:
        yield warning("empty", f"no items: POST /score {answer.told()}", 'answer {"results": []}')
    cases = {"long": [with_text(items[0], "long " * (LONG // 5), "long")]}
    cases["unicode"] = [with_text(items[0], text, f"odd-{index}") for index, text in enumerate(ODD_TEXTS)]
    for code, odd in cases.items():
        answer = await asking.score(odd)
        told = {"long": f"an item of {LONG:,} characters", "unicode": "odd but valid text"}[code]
        if not answer.ok:
            yield error(code, f"{told}: POST /score {answer.told()}", "answer it, with null and an error where need be")


async def refuses_in_order(asking: Asking) -> AsyncIterator[Finding]:
    for body, told in ((b"{", "a body that is no JSON"), (b'{"items": 7}', "a body of another shape")):
        answer = await asking.post(body)
        if answer.ok or answer.status is None or answer.status >= 500:
            yield warning(
                "bad-request", f"{told}: POST /score {answer.told()}", "answer 4xx: 5xx and timeouts are tried again"
            )
            return


async def keeps_its_key(asking: Asking, items: Sequence[Item]) -> AsyncIterator[Finding]:
    body = msgspec.json.encode(request_body(renamed(items[:1], "stranger")))
    answer = await asking.post(body, headers={"Authorization": "Bearer wrong"})
    if answer.ok:
        yield error("open", "a request with a wrong key was answered", "compare the bearer token, in constant time")


async def stays_healthy_under_load(asking: Asking, items: Sequence[Item]) -> AsyncIterator[Finding]:
    """Health is asked for while a batch is scored."""
    scoring = asyncio.create_task(asking.score(enough(items, 32, "busy")))
    answers: list[Answer] = []
    while not scoring.done():
        answers.append(await asking.get("/health", HEALTH_S))
        await asyncio.wait({scoring}, timeout=0.05)
    await scoring
    bad = next((answer for answer in answers if not answer.ok), None)
    if bad is not None:
        told = f"while 32 items were scored, GET /health {bad.told()}"
        yield warning("health-blocked", told, "score in threads, so that a busy service does not look like a dead one")


async def guarded(findings: Callable[[], AsyncIterator[Finding]]) -> list[Finding]:
    """A probe whose request fails says so once."""
    found: list[Finding] = []
    try:
        async for finding in findings():
            found.append(finding)
    except RewardError as problem:
        found.append(error("request-fails", f"POST /score {problem}", "see the service's log"))
    return found


def _differing(first: dict[str, Score], second: dict[str, Score]) -> str | None:
    return next((item for item in first if not _equal(first[item], second[item])), None)


def _equal(first: Score, second: Score) -> bool:
    if first.reward is None or second.reward is None:
        return first.reward is second.reward
    return math.isclose(first.reward, second.reward, rel_tol=SAME, abs_tol=SAME)
