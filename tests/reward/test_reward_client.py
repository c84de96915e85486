"""Cases 28, 29 and 31: a reward service's outages and mistakes cost what they must and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from reward_server import answering, hang, serving

from agentrl.errors import ConfigError, RewardError
from agentrl.reward import client as client_module
from agentrl.reward.client import RewardClient
from agentrl.reward.config import ServiceConfig
from agentrl.reward.protocol import Item, Score


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_BACKOFF_S", 0.0)


def items(count: int) -> list[Item]:
    return [
        Item(id=f"e{i}", task={}, messages=[{"role": "user", "content": "q"}], text=str(i), reward_so_far=None)
        for i in range(count)
    ]


def client(url: str, **settings: Any) -> RewardClient:
    return RewardClient(ServiceConfig(name="judge", url=url, batch_wait_s=0.0, **settings))


async def refused(judge: RewardClient, count: int) -> str:
    """Why none of so many items got a score."""
    scores = await judge.score(items(count))
    assert [score.reward for score in scores.values()] == [None] * count
    (why,) = {score.error for score in scores.values()}
    return str(why)


def answers(*results: Any) -> Any:
    """A server that sends these results whatever it is asked."""

    async def behave(body: dict[str, Any]) -> web.Response:
        return web.Response(text=json.dumps({"results": list(results)}), content_type="application/json")

    return behave


@pytest.mark.parametrize("count", [1, 3, 5])
async def test_another_number_of_results_is_an_error_that_names_both_and_assigns_nothing(count: int) -> None:
    """Case 28."""
    async with serving(answers(*({"id": f"e{i}", "reward": 1.0} for i in range(count)))) as server:
        judge = client(server.url, max_attempts=1)
        scores = await judge.score(items(4), together=True)
        assert [scores[f"e{i}"].reward for i in range(4)] == [None] * 4
        assert {score.error for score in scores.values()} == {
            f"reward service judge sent {count} results for 4 items; send one per item"
        }
        await judge.close()


async def test_results_in_any_order_are_matched_by_id() -> None:
    """Case 28."""
    shuffled = [{"id": f"e{i}", "reward": i / 10} for i in (2, 0, 3, 1)]
    async with serving(answers(*shuffled)) as server:
        judge = client(server.url)
        scores = await judge.score(items(4))
        assert {name: score.reward for name, score in scores.items()} == {"e0": 0.0, "e1": 0.1, "e2": 0.2, "e3": 0.3}
        await judge.close()


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([{"id": "e0", "reward": 1}, {"id": "e0", "reward": 1}], "for 1 of 2 ids"),
        ([{"id": "e0", "reward": 1}, {"id": "x", "reward": 1}], "unknown ones such as ['x']"),
        ([{"id": "e0", "reward": "1"}, {"id": "e1", "reward": 1}], "broke its contract"),
        ([{"id": "e0", "reward": True}, {"id": "e1", "reward": 1}], "broke its contract"),
        ([1.0, 0.0], "broke its contract"),
    ],
)
async def test_answers_that_break_the_contract_are_refused_whole(results: list[Any], said: str) -> None:
    async with serving(answers(*results)) as server:
        judge = client(server.url, max_attempts=1)
        scores = await judge.score(items(2), together=True)
        assert [score.reward for score in scores.values()] == [None, None]
        assert all(said in str(score.error) for score in scores.values())
        assert len(server.bodies) == 1
        await judge.close()


async def test_a_broken_answer_is_asked_for_again() -> None:
    first = iter([True])

    async def once_short(body: dict[str, Any]) -> web.Response:
        if next(first, False):
            return web.json_response({"results": []})
        return await answering(lambda item: {"reward": 1.0})(body)

    async with serving(once_short) as server:
        judge = client(server.url)
        assert {score.reward for score in (await judge.score(items(4))).values()} == {1.0}
        await judge.close()


async def test_a_score_that_is_not_finite_and_an_items_own_error_cost_that_item_only() -> None:
    async with serving(
        answers(
            {"id": "e0", "reward": float("nan")},
            {"id": "e1", "reward": 1.0, "components": {"style": float("inf")}},
            {"id": "e2", "reward": 1.0, "error": "too long to judge"},
            {"id": "e3", "reward": 0.25, "components": {"style": 0.5}},
            {"id": "e4", "reward": None},
        )
    ) as server:
        judge = client(server.url)
        scores = await judge.score(items(5))
        assert [scores[f"e{i}"].reward for i in range(5)] == [None, None, None, 0.25, None]
        assert [bool(scores[f"e{i}"].error) for i in range(5)] == [True, True, True, False, False]
        assert scores["e3"].components == {"style": 0.5}
        await judge.close()


async def test_items_that_fail_by_themselves_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    failing = answering(lambda item: {"reward": float("nan") if item["id"] == "e1" else 1.0})
    async with serving(failing) as server:
        judge = client(server.url)
        await judge.score(items(3))
        await judge.close()
    assert "reward is nan, not a finite number; left without its reward: e1" in caplog.text


async def test_one_item_that_always_fails_is_missing_and_its_batch_is_scored() -> None:
    """Case 29: 500 for one of four for ever."""

    async def poisoned(body: dict[str, Any]) -> web.Response:
        if any(item["id"] == "e2" for item in body["items"]):
            return web.Response(status=500)
        return await answering(lambda item: {"reward": 1.0})(body)

    async with serving(poisoned) as server:
        judge = client(server.url, max_attempts=3)
        scores = await judge.score(items(4))
        assert [scores[f"e{i}"].reward for i in range(4)] == [1.0, 1.0, None, 1.0]
        assert "500" in (scores["e2"].error or "")
        sizes = [len(body["items"]) for body in server.bodies]
        assert sorted(sizes) == [1, 1, 1, 1, 2, 2, 4]  # halved until it was alone, and then tried three times
        await judge.close()


def sequence(*statuses: int) -> Any:
    left: Iterator[int] = iter(statuses)

    async def behave(body: dict[str, Any]) -> web.Response:
        status = next(left)
        if status != 200:
            return web.Response(status=status, text="no", headers={"Retry-After": "0"})
        return await answering(lambda item: {"reward": 1.0})(body)

    return behave


async def test_an_outage_that_passes_costs_nothing() -> None:
    """Case 31: 503, 503, 200."""
    async with serving(sequence(503, 503, 200)) as server:
        judge = client(server.url)
        assert (await judge.score(items(1)))["e0"].reward == 1.0
        assert len(server.bodies) == 3
        await judge.close()


async def test_the_tries_are_bounded() -> None:
    async with serving(sequence(503, 429, 503, 200)) as server:
        judge = client(server.url, max_attempts=3)
        assert await refused(judge, 1) == "reward service judge answered 503"
        assert len(server.bodies) == 3
        await judge.close()


async def test_a_refused_request_is_not_tried_again() -> None:
    """Case 31: 400."""
    async with serving(sequence(400, 200)) as server:
        judge = client(server.url)
        assert await refused(judge, 1) == "reward service judge refused the request with 400: no"
        assert len(server.bodies) == 1
        await judge.close()


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_an_item_that_the_service_does_not_take_costs_no_other(status: int) -> None:
    async def picky(body: dict[str, Any]) -> web.Response:
        if any(item["id"] == "e2" for item in body["items"]):
            return web.Response(status=status, text="not that one")
        return await answering(lambda item: {"reward": 1.0})(body)

    async with serving(picky) as server:
        judge = client(server.url)
        scores = await judge.score(items(4))
        assert [scores[f"e{i}"].reward for i in range(4)] == [1.0, 1.0, None, 1.0]
        assert scores["e2"].error == f"reward service judge refused the request with {status}: not that one"
        assert sorted(len(body["items"]) for body in server.bodies) == [1, 1, 2, 2, 4]  # alone it is asked for once
        await judge.close()


@pytest.mark.parametrize("status", [301, 401, 404])
async def test_a_refusal_that_no_other_item_would_better_costs_one_request(status: int) -> None:
    async with serving(sequence(status, 200)) as server:
        judge = client(server.url)
        assert f"refused the request with {status}" in await refused(judge, 4)
        assert len(server.bodies) == 1
        await judge.close()


async def test_a_service_that_never_answers_ends_in_its_timeout() -> None:
    """Case 31. Its health check, which decides that an item is to blame, answers well within the limit."""
    async with serving(hang) as server:
        judge = client(server.url, timeout_s=0.5, max_attempts=2)
        scores = await judge.score(items(3))
        assert all("did not answer within 0.5 s" in (score.error or "") for score in scores.values())
        asked = Counter(item["id"] for body in server.bodies if len(body["items"]) == 1 for item in body["items"])
        assert asked == {"e0": 2, "e1": 2, "e2": 2}
        await judge.close()


async def test_five_hundred_at_once_are_all_scored_within_the_concurrency() -> None:
    """Case 31."""
    async with serving(answering(lambda item: {"reward": float(item["text"])})) as server:
        judge = client(server.url, batch_size=1, concurrency=7)
        scores = await judge.score(items(500))
        assert [scores[f"e{i}"].reward for i in range(500)] == [float(i) for i in range(500)]
        assert server.most_at_once <= 7
        await judge.close()


async def test_each_item_is_asked_for_once_in_batches_of_the_given_size() -> None:
    async with serving(answering(lambda item: {"reward": 0.0})) as server:
        judge = client(server.url, batch_size=3)
        await judge.score(items(7))
        assert sorted(len(body["items"]) for body in server.bodies) == [1, 3, 3]
        asked = Counter(item["id"] for body in server.bodies for item in body["items"])
        assert asked == Counter(f"e{i}" for i in range(7))
        await judge.close()


async def test_no_connection_is_an_outage_and_a_failed_check_names_the_service() -> None:
    async with serving(hang) as server:
        gone = server.url
        judge = client(gone, max_attempts=1)
        await judge.check()
        await judge.close()
    judge = client(gone, max_attempts=2)
    assert (await refused(judge, 1)).startswith("reward service judge cannot be reached at")
    with pytest.raises(RewardError, match=r"judge does not answer at .*/health"):
        await judge.check()
    await judge.close()


async def test_the_token_comes_from_the_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret")
    async with serving(answering(lambda item: {"reward": 0.0})) as server:
        judge = client(server.url, auth_env="JUDGE_TOKEN")
        await judge.score(items(1))
        assert server.headers[0]["Authorization"] == "Bearer s3cret"
        await judge.close()


def test_a_token_variable_that_is_not_set_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="JUDGE_TOKEN"):
        client("http://127.0.0.1:1", auth_env="JUDGE_TOKEN")


async def test_openrlhfs_form_is_matched_by_position_and_count() -> None:
    async def openrlhf(body: dict[str, Any]) -> web.Response:
        return web.json_response({"rewards": [float(len(query)) for query in body["query"]]})

    async with serving(openrlhf) as server:
        judge = client(server.url, protocol="openrlhf")
        task = {"options": {"label": "42"}}
        talk = [{"role": "user", "content": "q?"}, {"role": "assistant", "content": "abc"}]
        item = Item(id="a", task=task, messages=talk, text="abc", reward_so_far=None)
        scores = await judge.score([item])
        assert server.bodies == [{"query": ["q?\nabc"], "prompts": ["q?"], "labels": ["42"]}]
        assert scores["a"].reward == 6.0
        await judge.close()


async def test_openrlhfs_form_with_too_few_rewards_is_refused() -> None:
    async def short(body: dict[str, Any]) -> web.Response:
        return web.json_response({"rewards": [1.0]})

    async with serving(short) as server:
        judge = client(server.url, protocol="openrlhf", max_attempts=1)
        scores = await judge.score(items(2), together=True)
        assert {score.error for score in scores.values()} == {
            "reward service judge sent 1 results for 2 items; send one per item"
        }
        await judge.close()


async def test_waiting_for_a_free_request_does_not_count_as_the_services_slowness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the only request that may be under way is answered, the clock of no other has begun."""
    arrived, may_answer, clocks = asyncio.Event(), asyncio.Event(), []
    timeout = asyncio.timeout

    def counted(seconds: float | None) -> asyncio.Timeout:
        if seconds == 7.5:
            clocks.append(seconds)
        return timeout(seconds)

    async def held(body: dict[str, Any]) -> web.Response:
        arrived.set()
        await may_answer.wait()
        return await answering(lambda item: {"reward": 1.0})(body)

    monkeypatch.setattr(asyncio, "timeout", counted)
    async with serving(held) as server:
        judge = client(server.url, batch_size=1, concurrency=1, timeout_s=7.5, max_attempts=1)
        scoring = asyncio.create_task(judge.score(items(10)))
        await arrived.wait()
        assert len(clocks) == 1
        may_answer.set()
        assert {score.reward for score in (await scoring).values()} == {1.0}
        assert len(clocks) == 10
        await judge.close()


async def test_what_became_too_old_while_the_service_was_out_is_missing_and_no_failure_of_it() -> None:
    """The first of the two can still be used, and is waited for."""
    async with serving(sequence(503, 200)) as server:
        judge = RewardClient(ServiceConfig(name="judge", url=server.url, batch_wait_s=0.05), policy="defer")
        fresh, old = await asyncio.gather(
            judge.score([Item(id="fresh")]), judge.score([Item(id="old")], useful=lambda: False)
        )
        assert (fresh["fresh"].reward, old["old"]) == (1.0, Score(id="old"))
        assert (judge.metrics()["late"], judge.metrics()["failures"]) == (1.0, 0.0)
        assert [[item["id"] for item in body["items"]] for body in server.bodies] == [["fresh", "old"], ["fresh"]]
        await judge.close()
