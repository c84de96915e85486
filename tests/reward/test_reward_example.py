"""`examples/02_http_reward`: the user's service honours the contract, over HTTP."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.messages import assistant, tool, user
from agentrl.reward.protocol import Item, read_answer, request_body

SERVICE = Path(__file__).parents[2] / "examples" / "02_http_reward" / "service.py"


@pytest.fixture
async def service() -> Any:
    spec = importlib.util.spec_from_file_location("example_service", SERVICE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    transport = httpx.ASGITransport(app=module.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        yield http


def item(name: str, question: str, answer: str, *, tool_used: bool = False) -> Item:
    used = [tool("391", tool_call_id="c")] if tool_used else []
    messages: list[Any] = [user(question), *used, assistant(answer)]
    return Item(id=name, task={}, messages=messages, text=answer, reward_so_far=None)


async def test_health(service: httpx.AsyncClient) -> None:
    assert (await service.get("/health")).status_code == 200


async def test_right_wrong_and_unjudgeable_answers(service: httpx.AsyncClient) -> None:
    items = [
        item("right", "What is 17*23?", " 391\n", tool_used=True),
        item("wrong", "What is 17-23?", "6"),
        item("other", "Who are you?", "6"),
    ]
    answered = await service.post("/score", json=request_body(items))
    scores = read_answer("judge", items, answered.content)
    assert [scores[i.id].reward for i in items] == [1.0, 0.0, None]
    assert scores["right"].components == {"used_tool": 1.0}
    assert "not a question I know" in (scores["other"].error or "")
