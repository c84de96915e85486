"""Content parts that are no text: they pass through untouched, and a gateway that cannot take them says which one."""

from __future__ import annotations

from typing import Any

from calculator_script import MODEL, encode

import agentrl
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import ScriptedEngine
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.worker import RolloutWorker
from agentrl.types import Task

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
PARTS = [{"type": "text", "text": "What is this?"}, PICTURE]


class Gallery(agentrl.Env):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return [agentrl.system("Look."), agentrl.user(list(PARTS))], {}

    def step(self, action: Any) -> Any:
        return [], 1.0, True, False, {}


TASK = Task(id="t", env_id=f"{__name__}:Gallery")


async def test_parts_reach_the_gateway_as_the_environment_made_them() -> None:
    gateway = ScriptedGateway(lambda messages: "a cat")
    worker = RolloutWorker(RolloutConfig(), "unused", "unused", gateway=gateway)
    (episode,) = await worker.run_episodes([TASK])
    await worker.close()
    assert gateway.sessions[0].prompts[0][1]["content"] == PARTS
    assert episode.messages[1]["content"] == PARTS
    assert episode.reward == 1.0


async def test_a_gateway_of_a_text_model_names_the_part_that_it_does_not_take() -> None:
    async with ScriptedEngine(lambda *_: encode("a cat")) as engine:
        server = GatewayServer(
            GatewayConfig(engine_urls=(engine.url,)), renderer=Renderer.load(MODEL), engine_factory=HttpEngineClient,
            sink=None,
        )  # fmt: skip
        config = RolloutConfig(episode_retries=0)
        worker = RolloutWorker(config, await server.start(), server.admin_key)
        try:
            (episode,) = await worker.run_episodes([TASK])
        finally:
            await worker.close()
            await server.stop()
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "the gateway does not take these messages or tools" in (episode.error or "")
    assert "messages[1].content[1]" in (episode.error or "")
    assert "image_url" in (episode.error or "")
