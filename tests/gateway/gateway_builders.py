"""Builders for the gateway's tests: small byte-level tokenizers, chat templates, and a gateway over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import Reply, Script, ScriptedEngine
from agentrl.errors import TrajectoryNotFound
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.engines import EngineFactory
from agentrl.gateway.ports import TrajectorySink
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.types import JournalEntry, Trajectory

SENTENCES = ["hello world, the answer to the question is hello", "<think>let me think</think> system user assistant"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"]
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]

TOOLS = """{% if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endif %}"""
TURN = """{{ '<|im_start|>' + message.role + '\\n' + content }}{% for call in message.tool_calls or [] %}\
{{ '<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"""
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

CHATML = TOOLS + "{% for message in messages %}{% set content = message.content %}" + TURN + "{% endfor %}" + PROMPT
WITH_BOS = "{{ bos_token }}" + CHATML
STRIPS_THINK = (
    TOOLS
    + """{% for message in messages %}{% set content = message.content %}\
{% if message.role == 'assistant' and not loop.last %}{% set content = content.split('</think>')[-1] %}{% endif %}"""
    + TURN
    + "{% endfor %}"
    + PROMPT
)
ROLE_MARKERS_END_TURNS = (  # no end marker: the next role's marker ends a turn, as in GLM's templates
    "{% for message in messages %}{{ '<|im_start|>' if message.role == 'assistant' else '<|im_end|>' }}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}{{ '<tool_call>' + call.function | tojson"
    " + '</tool_call>' }}{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
)
HOISTS_SYSTEM = (
    "{% for message in messages if message.role == 'system' %}{{ message.content }}{% endfor %}"
    "{% for message in messages if message.role != 'system' %}{% set content = message.content %}"
    + TURN
    + "{% endfor %}"
    + PROMPT
)

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@cache
def backend(normalizer: Any = None) -> Tokenizer:
    """A byte-level BPE of about 320 entries in which `hello` is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=normalizer is not None) for mark in MARKS])
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def transformers_tokenizer(template: str = CHATML, *, normalizer: Any = None) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend(normalizer),
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",  # the same id as EOS, as many models have it (case 12)
        chat_template=template,
    )


@cache
def renderer(template: str = CHATML) -> Renderer:
    return Renderer(transformers_tokenizer(template))


def ids(text: str) -> list[int]:
    """The ids of text, control tokens matched."""
    return list(backend().encode(text, add_special_tokens=False).ids)


def letters(text: str) -> list[int]:
    """The ids of text one character at a time: what a tokenizer would never give, and a model may well sample."""
    return [token_id for char in text for token_id in ids(char)]


END = ids("<|im_end|>")[0]


class MemorySink:
    """A trajectory sink in memory."""

    def __init__(self) -> None:
        self.saved: dict[str, Trajectory] = {}
        self.rewards: list[tuple[str, float | None, dict[str, float | None]]] = []
        self.journaled: dict[str, list[JournalEntry]] = {}

    def save(self, trajectory: Trajectory) -> None:
        self.saved[trajectory.session_id] = trajectory
        self.forget_journal(trajectory.session_id)

    def get(self, session_id: str) -> Trajectory:
        if session_id not in self.saved:
            raise TrajectoryNotFound(session_id)
        return self.saved[session_id]

    def set_reward(self, session_id: str, reward: float | None, components: Any) -> None:
        self.rewards.append((session_id, reward, dict(components)))

    def append(self, entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            self.journaled.setdefault(entry.session_id, []).append(entry)

    def append_at_once(self, entries: Sequence[JournalEntry]) -> bool:
        return False

    def write(self, entries: Sequence[JournalEntry], trajectories: Sequence[Trajectory]) -> None:
        for trajectory in trajectories:
            self.save(trajectory)
        self.append(entries)

    def journal(self, owner: str) -> Iterator[tuple[str, list[bytes]]]:
        for session_id, entries in list(self.journaled.items()):
            if entries[0].owner == owner:
                yield session_id, [entry.data for entry in entries]

    def has_journal(self, session_id: str) -> bool:
        return session_id in self.journaled

    def forget_journal(self, session_id: str) -> None:
        self.journaled.pop(session_id, None)


@dataclass
class Opened:
    """A session, as its agent sees it."""

    http: httpx.AsyncClient
    id: str
    base_url: str
    api_key: str

    async def post(self, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.api_key}"}
        return await self.http.post(f"{self.base_url}/chat/completions", json=body, headers=headers)

    async def chat(self, messages: Sequence[dict[str, Any]], **body: Any) -> dict[str, Any]:
        response = await self.post(messages=list(messages), **body)
        assert response.status_code == 200, response.text
        return dict(response.json())


@dataclass
class Served:
    """A gateway over HTTP in front of scripted engines."""

    server: GatewayServer
    engines: list[ScriptedEngine]
    http: httpx.AsyncClient  # with the admin key

    @property
    def engine(self) -> ScriptedEngine:
        return self.engines[0]

    async def open(self, **body: Any) -> Opened:
        response = await self.http.post("/sessions", json=body)
        assert response.status_code == 201, response.text
        opened = response.json()
        return Opened(self.http, opened["session_id"], opened["base_url"], opened["api_key"])

    async def finish(self, session: Opened, **body: Any) -> dict[str, Any]:
        response = await self.http.post(f"/sessions/{session.id}/finish", json=body)
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def trajectory(self, session: Opened) -> dict[str, Any]:
        response = await self.http.get(f"/sessions/{session.id}/trajectory")
        assert response.status_code == 200, response.text
        return dict(response.json())


@asynccontextmanager
async def serving(
    *scripts: Script,
    template: str = CHATML,
    sink: TrajectorySink | None = None,
    max_model_len: int = 4096,
    engine_factory: EngineFactory = HttpEngineClient,
    admin_key: str | None = None,
    renders: Renderer | None = None,
    **config: Any,
) -> AsyncIterator[Served]:
    """`renders`: instead of `template` and the tokenizer of this file."""
    engines = [ScriptedEngine(script, max_model_len=max_model_len) for script in scripts]
    for engine in engines:
        await engine.__aenter__()
    quick = {"health_every_s": 0.05, "breaker_backoff_s": 0.05}
    settings = GatewayConfig(**{**quick, "engine_urls": tuple(e.url for e in engines), **config})
    server = GatewayServer(
        settings,
        renderer=renders or renderer(template),
        engine_factory=engine_factory,
        admin_key=admin_key,
        sink=sink,
    )
    await server.start()
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    try:
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=30, trust_env=False) as http:
            yield Served(server, engines, http)
    finally:
        await server.stop()
        for engine in engines:
            await engine.__aexit__(None, None, None)


def says(*turns: Sequence[int] | Reply) -> Script:
    """A script that samples these turns, one a request."""
    left = list(turns)
    return lambda prompt_ids, sampling, version: left.pop(0)


def always(turn: Sequence[int] | Reply) -> Script:
    return lambda prompt_ids, sampling, version: turn


def continues(turn: Sequence[int]) -> Script:
    """A script that samples the rest of this turn, wherever the prompt has come to in it."""

    def script(prompt_ids: list[int], sampling: Any, version: int) -> list[int]:
        held = next(n for n in range(len(turn), -1, -1) if list(turn[:n]) == prompt_ids[len(prompt_ids) - n :])
        return list(turn[held:])

    return script


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits for a condition that nothing announces. TimeoutError after 10 seconds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
