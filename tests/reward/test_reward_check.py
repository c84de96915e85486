"""`agentrl reward check` finds each planted fault, and nothing in a service that keeps its contract."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import ConfigError
from agentrl.reward.app import build_app
from agentrl.reward.check.curve import serial
from agentrl.reward.check.finding import Load, Report
from agentrl.reward.check.items import made_up
from agentrl.reward.check.run import check_service
from agentrl_rewards.match.service import Match

Results = Callable[[list[dict[str, Any]]], Any]


def right(item: dict[str, Any]) -> float:
    return float(item["text"] == item["task"].get("options", {}).get("answer"))


def well_behaved(items: list[dict[str, Any]]) -> Any:
    return {"results": [{"id": item["id"], "reward": right(item)} for item in items]}


def service(
    results: Results = well_behaved, *, health: int = 200, fails: Callable[[list[Any]], bool] | None = None
) -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    async def answer_health() -> Response:
        return Response(status_code=health)

    @app.post("/score")
    async def score(request: Request) -> Response:
        try:
            items = (await request.json())["items"]
            [item["id"] for item in items]
        except Exception:
            return JSONResponse({"error": {"message": "no"}}, 400)
        if fails is not None and fails(items):
            return Response(status_code=500)
        found = results(items)
        return found if isinstance(found, Response) else NaNs(found)

    return app


class NaNs(Response):
    """JSON as Python writes it, NaN included."""

    def __init__(self, body: Any) -> None:
        import json

        super().__init__(json.dumps(body), media_type="application/json")


async def checked(app: FastAPI, **options: Any) -> Report:
    return await check_service(
        "http://service",
        made_up(6),
        timeout_s=5.0,
        load_s=0.01,
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        **options,
    )


def codes(report: Report) -> list[str]:
    """Without `serial`, which a busy machine brings about; what it takes to be told is tested on `serial` itself."""
    return [finding.code for finding in report.findings if finding.code != "serial"]


def rewards(change: Callable[[int, dict[str, Any]], Any]) -> Results:
    return lambda items: {"results": [{"id": item["id"], "reward": change(i, item)} for i, item in enumerate(items)]}


def asked_before() -> Results:
    """Counts how often it was asked, and gives that."""
    count = iter(range(10**9))
    return rewards(lambda index, item: float(next(count)))


PLANTED: dict[str, FastAPI] = {
    "health": service(health=503),
    "request-fails": service(fails=lambda items: len(items) > 1),
    "shape": service(lambda items: [right(item) for item in items]),
    "count": service(lambda items: {"results": well_behaved(items)["results"][:-1]}),
    "ids": service(lambda items: {"results": [{"id": str(i), "reward": 1.0} for i, _ in enumerate(items)]}),
    "type": service(rewards(lambda index, item: "1.0")),
    "not-finite": service(rewards(lambda index, item: math.nan if index == 1 else 1.0)),
    "range": service(rewards(lambda index, item: 7.0)),
    "idempotency": service(asked_before()),
    "order": service(rewards(lambda index, item: float(index))),
    "batch": service(lambda items: rewards(lambda index, item: right(item) / len(items))(items)),
    "equals-differ": service(rewards(lambda index, item: float(random.Random(item["id"]).random()))),
    "empty": service(fails=lambda items: not items),
    "long": service(fails=lambda items: any(len(item["text"]) > 10_000 for item in items)),
    "unicode": service(fails=lambda items: any(not item["text"].isascii() for item in items)),
}


@pytest.mark.parametrize("code", PLANTED)
async def test_a_planted_fault_is_found_under_its_code(code: str) -> None:
    report = await checked(PLANTED[code], bounds=(0.0, 1.0) if code == "range" else None)
    assert code in codes(report)
    found = next(finding for finding in report.findings if finding.code == code)
    assert found.message
    assert found.fix


async def test_a_service_that_takes_bad_requests_for_outages_is_told() -> None:
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {}

    @app.post("/score")
    async def score(request: Request) -> Any:
        return well_behaved((await request.json())["items"])

    assert codes(await checked(app)) == ["bad-request"]


async def test_a_service_that_answers_any_key_is_told() -> None:
    assert codes(await checked(service(), key="secret")) == ["open"]


async def test_a_service_that_is_deaf_while_it_scores_is_told() -> None:
    """Its health check waits for the lock that scoring holds."""
    lock, slow = asyncio.Lock(), asyncio.Event()
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        async with lock:
            return {}

    @app.post("/score")
    async def score(request: Request) -> Any:
        try:
            items = (await request.json())["items"]
            found = well_behaved(items)
        except Exception:
            return JSONResponse({}, 400)
        async with lock:
            if len(items) == 32 and not slow.is_set():
                slow.set()
                await asyncio.sleep(1.5)
            return found

    assert codes(await checked(app)) == ["health-blocked"]


def test_requests_that_gain_nothing_from_company_are_told() -> None:
    def load(at_once: int, items_per_s: float) -> Load:
        return Load(batch_size=1, at_once=at_once, p50_ms=20.0, p99_ms=30.0, items_per_s=items_per_s)

    assert [finding.code for finding in serial([load(1, 50.0), load(8, 55.0)])] == ["serial"]
    assert serial([load(1, 50.0), load(8, 350.0)]) == []


async def test_nothing_is_found_in_a_service_that_keeps_its_contract() -> None:
    report = await checked(service(), bounds=(0.0, 1.0))
    assert codes(report) == []
    assert [(load.batch_size, load.at_once) for load in report.curve] == [(1, 1), (8, 1), (32, 1), (1, 8), (8, 8)]
    assert report.unscored == 0


async def test_nothing_is_found_in_our_own_services() -> None:
    app = build_app("match", Match(), key="secret")
    async with app.router.lifespan_context(app):
        report = await checked(app, bounds=(0.0, 1.0), key="secret")
    assert codes(report) == []


async def test_a_service_that_is_not_there_is_one_finding_each() -> None:
    report = await check_service("http://127.0.0.1:9", made_up(2), timeout_s=2.0)
    assert codes(report) == ["health", "request-fails"]


async def test_items_that_nobody_can_judge_are_counted() -> None:
    report = await checked(service(rewards(lambda index, item: None)))
    assert report.unscored == 6


def test_the_page_explains_every_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reward-check.md").read_text()
    for code in [*PLANTED, "bad-request", "open", "health-blocked", "serial"]:
        assert f"| `{code}` |" in page


def test_the_command_says_what_it_finds_and_its_exit_status_is_1() -> None:
    ran = CliRunner().invoke(app, ["reward", "check", "http://127.0.0.1:9", "--timeout", "2"])
    assert ran.exit_code == 1
    assert "error health" in ran.output
    assert "2 errors, 0 warnings" in ran.output


@pytest.mark.parametrize(
    ("content", "said"), [("{}", r"items\.jsonl:1: not an item"), ('{"id": "a"}', "at least two with different ids")]
)
def test_a_file_of_items_with_a_fault_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "items.jsonl").write_text(content)
    ran = CliRunner().invoke(app, ["reward", "check", "http://h", "--items", str(tmp_path / "items.jsonl")])
    assert isinstance(ran.exception, ConfigError)
    assert re.search(said, str(ran.exception))
