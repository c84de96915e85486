"""A real vLLM server is killed in the middle of 32 streams that it shares with another: nobody notices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from vllm_session import Sample, VllmEngine

from agentrl.audit.finding import Subject
from agentrl.audit.identity import IDENTITY
from agentrl.audit.logprobs import LOGPROBS
from agentrl.audit.once import ONCE
from agentrl.audit.versions import VERSIONS
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.config import EngineConfig
from agentrl.engine.replica import EngineReplica
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.types import Trajectory

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

STREAMS, LENGTH = 32, 160
TEMPERATURE = 2.0  # most tokens may come next, the one that ends the turn seldom
TOLERANCE = 1e-4


@pytest.fixture
def victim(vllm_engine: VllmEngine, tmp_path: Path) -> Iterator[EngineReplica]:
    replica = EngineReplica(
        vllm_engine.model,
        EngineConfig(max_num_seqs=64),
        logs_dir=tmp_path,
        weights_dir=vllm_engine.weights_dir,
        index=1,
    )
    replica.start()
    yield replica
    replica.stop()


def kill(replica: EngineReplica) -> None:
    """The server's whole process group, with -9."""
    process = replica._process
    assert process is not None
    os.killpg(os.getpgid(process.pid), signal.SIGKILL)


async def test_streams_survive_the_death_of_their_engine(vllm_engine: VllmEngine, victim: EngineReplica) -> None:
    assert victim.url is not None
    if vllm_engine.version:  # after earlier tests' swaps, back to the first weights: the victim has to be as new
        newer = VllmEngine(victim.url, vllm_engine.model, vllm_engine.weights_dir, version=vllm_engine.version - 1)
        await newer.swap(newer.initial(), "recompute")
    config = GatewayConfig(engine_urls=(victim.url, vllm_engine.url), health_every_s=0.5)
    server = GatewayServer(config, renderer=Renderer.load(vllm_engine.model), engine_factory=HttpEngineClient)
    await server.start()
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    half = asyncio.Event()

    async def one(http: httpx.AsyncClient, number: int) -> Trajectory:
        opened = (await http.post("/sessions", json={"sampling": {"temperature": TEMPERATURE}})).json()
        got: list[int] = []
        async with openai.AsyncOpenAI(base_url=opened["base_url"], api_key=opened["api_key"], max_retries=0) as sdk:
            stream = await sdk.completions.create(
                model="policy",
                prompt=f"question {number}",
                max_tokens=LENGTH,
                stream=True,
                extra_body={"return_token_ids": True},
            )
            async for chunk in stream:
                got += chunk.choices[0].model_extra["token_ids"]  # type: ignore[index]
                if len(got) >= LENGTH // 4:
                    half.set()
        trajectory = server.gateway.sessions.get(opened["session_id"]).trajectory()
        assert trajectory.calls[0].token_ids == got
        return trajectory

    try:
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=120, trust_env=False) as http:
            async with asyncio.timeout(200):
                streams = asyncio.gather(*(one(http, number) for number in range(STREAMS)))
                begun = asyncio.create_task(half.wait())
                await asyncio.wait({streams, begun}, return_when=asyncio.FIRST_COMPLETED)
                kill(victim)
                trajectories = await streams
    finally:
        await server.stop()
    weights = vllm_engine.initial()
    joined = [trajectory for trajectory in trajectories if trajectory.calls[0].segments]
    assert joined
    for trajectory in trajectories:
        subject = Subject(trajectory)
        for check in (IDENTITY, ONCE, LOGPROBS, VERSIONS):
            assert check.examine(subject).findings == []
        assert trajectory.dropped == {}
    for trajectory in joined[:4]:
        [call] = trajectory.calls
        assert call.logprobs is not None
        sample = Sample(call.prompt_token_ids, call.token_ids, call.logprobs)
        expected = vllm_engine.expected_logprobs(weights, sample, TEMPERATURE)
        assert max(abs(a - b) for a, b in zip(call.logprobs, expected, strict=True)) < TOLERANCE
