"""A reward service over HTTP: once per id, bounded, documented, and closed to strangers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from agentrl.reward.app import build_app
from agentrl.reward.protocol import Item, Score
from agentrl.reward.scoring import Busy, Scoring, Stopping
from agentrl.reward.service import CannotScore, ItemService


class Length(ItemService):
    """The length of the text; "bad" cannot be judged, "crash" raises, "nan" is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def score_item(self, item: Item) -> Score | float:
        self.asked.append(item.text)
        if item.text == "bad":
            raise CannotScore("nothing to judge")
        if item.text == "crash":
            raise KeyError("gone")
        return float("nan") if item.text == "nan" else len(item.text)


class Gate:
    """Scores nothing until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.batches: list[list[str]] = []

    async def score(self, items: Sequence[Item]) -> Sequence[Score]:
        self.batches.append([item.id for item in items])
        await self.open.wait()
        return [Score(id=item.id, reward=1.0) for item in reversed(items)]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def served(service: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app("test", service, **options)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://s") as client:
        yield client


def body(*texts: str) -> dict[str, Any]:
    return {"items": [{"id": f"i{index}", "text": text} for index, text in enumerate(texts)]}


async def test_every_item_has_its_result_and_one_items_failure_is_its_own() -> None:
    async with served(Length()) as client:
        answer = await client.post("/score", json=body("four", "bad", "crash", "nan"))
    assert answer.status_code == 200
    results = {result["id"]: (result["reward"], result["error"]) for result in answer.json()["results"]}
    assert results == {
        "i0": (4.0, None),
        "i1": (None, "nothing to judge"),
        "i2": (None, "KeyError: 'gone'"),
        "i3": (None, "the reward is nan, which is not a finite number"),
    }


async def test_an_id_that_is_asked_for_again_is_scored_once_and_a_failed_one_again() -> None:
    service = Length()
    async with served(service) as client:
        for _ in range(2):
            await client.post("/score", json=body("four", "bad"))
    assert sorted(service.asked) == ["bad", "bad", "four"]


async def test_an_id_with_another_content_is_another_episode() -> None:
    async with served(Length()) as client:
        answers = [
            (await client.post("/score", json=body(text))).json()["results"][0]["reward"] for text in ("a", "bb")
        ]
    assert answers == [1.0, 2.0]


async def test_an_item_that_is_being_scored_is_not_scored_twice_and_outlives_who_asked_first() -> None:
    gate = Gate()
    scoring = Scoring(gate)
    item = Item(id="a")
    first, second = (asyncio.create_task(scoring.score([item])) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    gate.open.set()
    assert await second == [Score(id="a", reward=1.0)]
    assert gate.batches == [["a"]]
    await scoring.close()


async def test_more_items_than_may_wait_are_told_to_wait() -> None:
    gate = Gate()
    scoring = Scoring(gate, max_waiting=2)
    waiting = asyncio.create_task(scoring.score([Item(id="a"), Item(id="b")]))
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="2 items are under way, of at most 2"):
        await scoring.score([Item(id="c")])
    gate.open.set()
    assert len(await waiting) == 2
    await scoring.close()


async def test_remembered_scores_are_bounded() -> None:
    service = Length()
    scoring = Scoring(service, remembered=2)
    for text in ("a", "b", "c", "c", "a"):
        await scoring.score([Item(id=text, text=text)])
    assert service.asked == ["a", "b", "c", "a"]
    await scoring.close()


async def test_busy_is_a_429_with_a_time_to_wait() -> None:
    async with served(Length(), max_waiting=1) as client:
        answer = await client.post("/score", json=body("a", "b"))
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert answer.json()["error"]["code"] == "busy"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not a score request"),
        (b'{"items": 3}', "Expected `array`"),
        (b'{"items": [{"text": "x"}]}', "missing required field `id`"),
        (b'{"items": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]}', "two different items have the same id"),
    ],
)
async def test_what_is_no_request_is_a_400_that_says_why(content: bytes, said: str) -> None:
    async with served(Length()) as client:
        answer = await client.post("/score", content=content)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_a_body_that_is_too_long_is_a_413() -> None:
    async with served(Length(), max_body=100) as client:
        answer = await client.post("/score", json=body("x" * 200))
    assert answer.status_code == 413


async def test_with_a_key_only_health_is_open() -> None:
    async with served(Length(), key="secret") as client:
        codes = [
            (await client.post("/score", json=body("a"))).status_code,
            (await client.post("/score", json=body("a"), headers={"Authorization": "Bearer guess"})).status_code,
            (await client.post("/score", json=body("a"), headers={"Authorization": "Bearer secret"})).status_code,
            (await client.get("/metrics")).status_code,
            (await client.get("/health")).status_code,
        ]
    assert codes == [401, 401, 200, 401, 200]


async def test_metrics_count_items_by_outcome() -> None:
    async with served(Length()) as client:
        await client.post("/score", json=body("a", "bad"))
        await client.post("/score", json=body("a"))
        text = (await client.get("/metrics")).text
    for line in ('{outcome="scored"} 1.0', '{outcome="failed"} 1.0', '{outcome="repeated"} 1.0'):
        assert f"agentrl_reward_items_total{line}" in text


async def test_the_documentation_shows_both_bodies() -> None:
    async with served(Length()) as client:
        page = (await client.get("/openapi.json")).json()
    post = page["paths"]["/score"]["post"]
    asked = post["requestBody"]["content"]["application/json"]["schema"]
    answered = post["responses"]["200"]["content"]["application/json"]["schema"]
    assert {"id", "task", "messages", "text"} <= asked["properties"]["items"]["items"]["properties"].keys()
    assert {"id", "reward", "components", "error"} <= answered["properties"]["results"]["items"]["properties"].keys()


async def test_a_service_that_stops_tells_who_waits_to_ask_again_and_scores_nothing_new() -> None:
    """503, which a run takes for an outage: an item's error would cost its episode."""
    gate = Gate()
    scoring = Scoring(gate)
    with pytest.raises(Stopping):
        await stopped_while(scoring, gate, grace_s=0.0)
    with pytest.raises(Stopping):
        await scoring.score([Item(id="b")])
    assert gate.batches == [["a"]]


async def test_what_ends_within_the_grace_is_answered() -> None:
    gate = Gate()
    asyncio.get_running_loop().call_later(0.05, gate.open.set)
    (score,) = await stopped_while(Scoring(gate), gate, grace_s=60.0)
    assert score.reward == 1.0


async def stopped_while(scoring: Scoring, gate: Gate, *, grace_s: float) -> list[Score]:
    asking = asyncio.create_task(scoring.score([Item(id="a")]))
    while not gate.batches:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await scoring.stop(grace_s)
    return await asking


async def test_a_service_that_is_stopping_answers_503() -> None:
    app = build_app("test", Length())
    await app.state.stop()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as client:
        answer = await client.post("/score", json=body("x"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
    assert answer.headers["Retry-After"] == "1"
