"""Adapters in a run: a worker, the real gateway and an engine by script; from the run files of the example."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pytest
from tokenizers import Tokenizer

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.config import load_run_config
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import registry
from agentrl.env.adapters import mcp as adapter
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.memory import MemoryStore
from agentrl.types import Group, Sampling

Isolation = Literal["thread", "process"]
ROOT = Path(__file__).parents[2]
MODEL = resolve_model(EMBEDDED)
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
END = TOKENIZER.token_to_id("<|im_end|>")


async def run(
    name: str, answer: Callable[[str], str], store: MemoryStore, isolation: Isolation, **more: object
) -> Group:
    """A group of two. `answer` is a function of the last message, role and text."""

    def policy(prompt_ids: Sequence[int], sampling: Sampling, version: int) -> list[int]:
        last = TOKENIZER.decode(list(prompt_ids), skip_special_tokens=False).split("<|im_start|>")[-2]
        said = answer(last.removesuffix("<|im_end|>\n"))
        return [*TOKENIZER.encode(said, add_special_tokens=False).ids, END]

    environment = load_run_config(ROOT / f"examples/05_adapters/{name}.toml").environment
    options = registry.placed(environment.id, {**environment.options, **more})
    [task] = registry.tasks(environment.id, split="train", seed=2, count=1, env_kwargs=options)
    async with ScriptedEngine(policy) as engine:
        config = GatewayConfig(engine_urls=(engine.url,))
        server = GatewayServer(config, renderer=Renderer.load(MODEL), engine_factory=HttpEngineClient, sink=store)
        worker = RolloutWorker(
            RolloutConfig(group_size=2, max_tokens=64, isolation=isolation),
            await server.start(),
            server.admin_key,
            env_kwargs=options,
        )
        try:
            return await worker.run_group("g", task, version=0)
        finally:
            await worker.close()
            await server.stop()


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def check(group: Group, store: MemoryStore, calls: int) -> None:
    assert [(episode.stop_reason, episode.reward) for episode in group.episodes] == [("done", 1.0)] * 2
    for trajectory in store.iterate(group_id="g"):
        [row] = trajectory.rows
        assert len(trajectory.calls) == calls
        assert sum(row.loss_mask) == sum(len(call.token_ids) for call in trajectory.calls)


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_a_gymnasium_environment(isolation: Isolation) -> None:
    way = iter(["down", "down", "right", "right", "down", "right"] * 2)
    store = MemoryStore()
    turns: dict[str, str] = {}

    def step(last: str) -> str:
        # Both episodes are at the same place at the same time, or one behind the other: the place says the way.
        grid = last.partition("\n")[2]
        if grid not in turns:
            turns[grid] = next(way)
        return turns[grid]

    check(await run("lake", step, store, isolation), store, calls=6)


@pytest.mark.parametrize(("isolation", "shared"), [("thread", False), ("thread", True), ("process", False)])
async def test_tools_of_an_mcp_server(isolation: Isolation, shared: bool) -> None:
    def answer(last: str) -> str:
        if topic := re.search(r"the books about (\w+)\? End", last):
            return f"<tool_call>\n{json.dumps({'name': 'find', 'arguments': {'topic': topic[1]}})}\n</tool_call>"
        found = re.search(r"on shelf (\d)", last)
        assert found, last
        return f"shelf {found[1]}"

    store = MemoryStore()
    try:
        check(await run("library", answer, store, isolation, shared=shared), store, calls=2)
    finally:
        await asyncio.to_thread(adapter._SHARED.close)
