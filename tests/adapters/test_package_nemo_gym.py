"""NeMo Gym's own resources servers verify what our client sends, and our client reads what they answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import create_autospec

import uvicorn
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import ServerClient
from resources_servers.example_single_tool_call.app import SimpleWeatherResourcesServer
from resources_servers.mcqa.app import MCQAResourcesServer

from agentrl.reward.client import RewardClient
from agentrl.reward.config import ServiceConfig
from agentrl.reward.protocol import Item, Score

CHOICES = {"options": [{"A": "Paris"}, {"B": "Rome"}], "expected_answer": "B"}
ASKED = {"role": "user", "content": "The capital of Italy?"}
LOOKED_UP: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]


def item(item_id: str, *turns: dict[str, Any]) -> Item:
    text = turns[-1]["content"] if turns and turns[-1]["role"] == "assistant" else ""
    return Item(id=item_id, task={"options": CHOICES}, messages=[ASKED, *turns], text=text or "")


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@asynccontextmanager
async def serving(kind: type[SimpleResourcesServer]) -> AsyncIterator[str]:
    config = kind.model_fields["config"].annotation(host="127.0.0.1", port=0, entrypoint="app.py", name="it")
    app = kind(config=config, server_client=create_autospec(ServerClient)).setup_webserver()
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await running


async def verified(kind: type[SimpleResourcesServer], *items: Item) -> dict[str, Score]:
    async with serving(kind) as url:
        client = RewardClient(ServiceConfig(name="gym", url=url, protocol="nemo_gym", max_attempts=1))
        scores = await client.score(list(items))
        await client.close()
    return scores


async def test_texts_are_verified_among_turns_of_users_and_tools() -> None:
    right = said(r"\boxed{B}")
    scores = await verified(
        MCQAResourcesServer,
        item("right", right),
        item("wrong", said(r"\boxed{A}")),
        item("silent"),
        item("after tools", *LOOKED_UP, right),
        item("after a question", *LOOKED_UP, said("North?"), {"role": "user", "content": "South."}, right),
        item("empty", said("")),
    )
    rewards = {name: score.reward for name, score in scores.items()}
    assert rewards == {
        "right": 1.0, "wrong": 0.0, "silent": 0.0, "after tools": 1.0, "after a question": 1.0, "empty": 0.0,
    }  # fmt: skip


async def test_calls_of_tools_are_verified() -> None:
    scores = await verified(SimpleWeatherResourcesServer, item("called", *LOOKED_UP), item("talked", said("Sunny.")))
    assert {name: score.reward for name, score in scores.items()} == {"called": 1.0, "talked": 0.0}


class Masking(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        lost = {"mask_sample": True, "failure_reason": "the session is gone"}
        return BaseVerifyResponse(**body.model_dump(), reward=0.0, **lost)


async def test_a_masked_reward_is_missing() -> None:
    score = (await verified(Masking, item("a", said("x"))))["a"]
    assert score.reward is None
    assert "no measurement (the session is gone)" in str(score.error)
