"""The gateway in front of a real vLLM server: SDKs, constraints, streams, transformers' logprobs, prefix cache."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest
from transformers import AutoTokenizer
from vllm_session import Sample, VllmEngine
from xgrammar import GrammarCompiler, GrammarMatcher, TokenizerInfo

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.client import HttpEngineClient
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.parsers import FAMILIES
from agentrl.gateway.parsers.forced import json_answer
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.types import Constraint

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

TOLERANCE = 1e-4
BLOCK = 128  # tokens of vLLM's cache blocks on a CPU
EXPRESSION = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "calculate", "parameters": EXPRESSION}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"sign": {"enum": ["plus", "minus"]}, "sure": {"type": "boolean"}},
    "required": ["sign", "sure"],
    "additionalProperties": False,
}
AS_SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
NOW: Any = {"type": "function", "function": {"name": "now"}}
QUESTION: list[Any] = [{"role": "user", "content": "What is 12*34?"}]
RIVERS: list[Any] = [{"role": "user", "content": "Tell me, one by one, the names of the rivers."}]
GREEDY = {"temperature": 0.0}
either = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])


@dataclass
class Front:
    """A gateway before the session's engine."""

    url: str
    http: httpx.AsyncClient  # with the admin key

    async def open(self, **body: Any) -> Agent:
        response = await self.http.post("/sessions", json=body)
        assert response.status_code == 201, response.text
        opened = response.json()
        return Agent(self, opened["session_id"], opened["base_url"], opened["api_key"])


@dataclass
class Agent:
    front: Front
    session_id: str
    base_url: str
    api_key: str

    async def chat(self, streaming: bool, **body: Any) -> Any:
        """A chat completion by the openai SDK, folded when it is streamed."""
        asked: Any = {"model": "policy", "messages": QUESTION, "max_tokens": 100, **body}
        async with openai.AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, max_retries=0) as sdk:
            if not streaming:
                return await sdk.chat.completions.create(**asked)
            async with sdk.chat.completions.stream(**asked) as events:
                async for _ in events:
                    pass
                return events.current_completion_snapshot

    async def trajectory(self) -> dict[str, Any]:
        response = await self.front.http.get(f"/sessions/{self.session_id}/trajectory")
        return dict(response.json())


@pytest.fixture
async def front(vllm_engine: VllmEngine) -> AsyncIterator[Front]:
    async with before(vllm_engine) as front:
        yield front


@asynccontextmanager
async def before(vllm_engine: VllmEngine, *, send_seed: bool = False) -> AsyncIterator[Front]:
    config = GatewayConfig(engine_urls=(vllm_engine.url,))
    engine_factory = partial(HttpEngineClient, send_seed=send_seed)
    server = GatewayServer(config, renderer=Renderer.load(vllm_engine.model), engine_factory=engine_factory)
    await server.start()
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    try:
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60, trust_env=False) as http:
            yield Front(server.url, http)
    finally:
        await server.stop()


@either
async def test_an_answer_that_is_asked_for_by_schema_keeps_to_it(front: Front, streaming: bool) -> None:
    """A word: in an object vLLM lets such a small policy write line breaks for ever."""
    schema = {"enum": ["plus", "minus"]}
    as_schema = {"type": "json_schema", "json_schema": {"name": "sign", "schema": schema}}
    agent = await front.open(mode="eval", sampling=GREEDY)
    [choice] = (await agent.chat(streaming, response_format=as_schema)).choices
    jsonschema.validate(json.loads(choice.message.content), schema)
    assert choice.finish_reason == "stop"


async def test_with_a_schema_and_tools_the_answer_is_one_or_the_other(front: Front) -> None:
    agent = await front.open(mode="eval", sampling=GREEDY)
    [choice] = (await agent.chat(False, response_format=AS_SCHEMA, tools=TOOLS, max_tokens=300)).choices
    assert choice.finish_reason in ("stop", "tool_calls"), choice
    if choice.message.tool_calls:
        assert choice.message.tool_calls[0].function.name in ("calculate", "now")
    else:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)


@pytest.mark.parametrize("in_reasoning", [False, True], ids=["at once", "after open thoughts"])
def test_vllms_grammar_allows_the_json_or_a_call_and_nothing_else(in_reasoning: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(resolve_model(EMBEDDED)))
    compiler = GrammarCompiler(TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer)))
    calls = FAMILIES["hermes"].forced(TOOLS, None, False, in_reasoning)
    grammar = compiler.compile_structural_tag(
        json_answer(Constraint(kind="json", value=SCHEMA), calls, in_reasoning).value
    )

    def allows(text: str) -> bool:
        matcher = GrammarMatcher(grammar)
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        return all(matcher.accept_token(number) for number in ids)

    thoughts = "so {\n</think>\n\n" if in_reasoning else ""
    answer = '{"sign": "plus", "sure": true}'
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert allows(thoughts + answer)
    assert allows(thoughts + call)
    assert not allows(thoughts + answer.replace("plus", "times"))
    assert not allows(thoughts + call + answer)
    assert not allows(thoughts)
    assert allows(answer) is not in_reasoning


@either
@pytest.mark.parametrize("choice", ["required", NOW], ids=["required", "named"])
async def test_a_call_that_is_asked_for_comes_and_is_counted(front: Front, streaming: bool, choice: Any) -> None:
    agent = await front.open(mode="eval", sampling=GREEDY)
    answer = await agent.chat(streaming, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    trajectory = await agent.trajectory()
    assert answer.choices[0].finish_reason == "tool_calls", trajectory["calls"]
    [call] = answer.choices[0].message.tool_calls
    if choice is NOW:
        assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})
    else:
        assert call.function.name in ("calculate", "now")
        assert isinstance(json.loads(call.function.arguments), dict)
    assert trajectory["rows"] == []
    assert trajectory["dropped"] == {"constrained": len(trajectory["calls"][0]["token_ids"])}, trajectory["calls"]


@either
async def test_alternatives_come_best_first_beside_the_logprob_that_is_recorded(front: Front, streaming: bool) -> None:
    agent = await front.open(sampling={"temperature": 0.7})
    answer = await agent.chat(streaming, logprobs=True, top_logprobs=3, max_tokens=8)
    [recorded] = (await agent.trajectory())["calls"]
    entries = answer.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == pytest.approx(recorded["logprobs"], abs=1e-6)
    for entry in entries:
        found = [other.logprob for other in entry.top_logprobs]
        assert len(found) == 3
        assert found == sorted(found, reverse=True)
        assert entry.logprob <= found[0] + 1e-6


@either
async def test_a_stop_string_ends_text_and_ids_where_it_is_complete(front: Front, streaming: bool) -> None:
    """Case 43 with an engine."""
    agent = await front.open(mode="eval", sampling=GREEDY)
    whole = (await agent.chat(False, tools=TOOLS, tool_choice="none", max_tokens=40)).choices[0].message.content
    stop = whole[5:9]
    [choice] = (await agent.chat(streaming, tools=TOOLS, tool_choice="none", max_tokens=40, stop=stop)).choices
    assert choice.message.content == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"
    first, second = (await agent.trajectory())["calls"]
    ended = len(second["token_ids"])
    assert second["token_ids"] == first["token_ids"][:ended]
    assert ended < len(first["token_ids"])
    assert len(second["logprobs"]) == ended


@pytest.mark.parametrize("send_seed", [False, True], ids=["as a run asks", "with the seed sent"])
async def test_four_choices_of_one_seed_are_four_answers(vllm_engine: VllmEngine, send_seed: bool) -> None:
    """Case 76: seed 7, n = 4, T = 1, 32 tokens, twice; the same four again where the engine is sent the seed.

    Where it is not, two of four are alike once in a thousand times: the policy knows nothing of rivers.
    """
    async with before(vllm_engine, send_seed=send_seed) as front:
        answers = []
        for _ in range(2):
            agent = await front.open(sampling={"temperature": 1.0})
            await agent.chat(False, messages=RIVERS, n=4, seed=7, max_tokens=32)
            calls = {call["call_id"]: tuple(call["token_ids"]) for call in (await agent.trajectory())["calls"]}
            answers.append([calls[call_id] for call_id in sorted(calls)])
    assert min(len(set(of_four)) for of_four in answers) >= (4 if send_seed else 2)
    assert (answers[0] == answers[1]) is send_seed


async def openai_episode(agent: Agent, streaming: bool) -> None:
    """Three turns of an agent that goes on whatever the policy answers."""
    messages = list(QUESTION)
    for _ in range(3):
        message = (await agent.chat(streaming, messages=messages, tools=TOOLS)).choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "408"} for call in message.tool_calls or []]
        messages += [message, *(results or [{"role": "user", "content": "Go on."}])]


async def anthropic_episode(agent: Agent, streaming: bool) -> None:
    tools: Any = [
        {"name": tool["function"]["name"], "input_schema": tool["function"].get("parameters", {"type": "object"})}
        for tool in TOOLS
    ]
    messages = list(QUESTION)
    url = agent.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key=agent.api_key, max_retries=0) as sdk:
        for _ in range(3):
            asked: Any = {"model": "policy", "max_tokens": 100, "messages": messages, "tools": tools}
            if streaming:
                async with sdk.messages.stream(**asked) as events:
                    message = await events.get_final_message()
            else:
                message = await sdk.messages.create(**asked)
            used = [block for block in message.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": block.id, "content": "408"} for block in used]
            messages += [{"role": "assistant", "content": message.content}]
            messages += [{"role": "user", "content": results or "Go on."}]


@either
@pytest.mark.parametrize("episode", [openai_episode, anthropic_episode], ids=["openai", "anthropic"])
async def test_an_episode_is_one_row_with_the_logprobs_that_transformers_computes(
    front: Front, vllm_engine: VllmEngine, streaming: bool, episode: Any
) -> None:
    """Cases 14 and 41: at temperature 0.7, over all turns, with the ids exactly as they were sampled."""
    agent = await front.open(sampling={"temperature": 0.7})
    await episode(agent, streaming)
    trajectory = await agent.trajectory()
    [row] = trajectory["rows"]
    assert trajectory["dropped"] == {}
    assert len(trajectory["calls"]) == 3
    whole = Sample(row["token_ids"][:1], row["token_ids"][1:])
    expected = vllm_engine.expected_logprobs(vllm_engine.initial(), whole, 0.7)
    errors = [
        abs(given - computed)
        for given, computed, mask in zip(row["logprobs"][1:], expected, row["loss_mask"][1:], strict=True)
        if mask
    ]
    assert len(errors) == sum(len(call["token_ids"]) for call in trajectory["calls"])
    assert max(errors) < TOLERANCE


async def test_each_turn_finds_all_full_blocks_of_the_turn_before_in_the_prefix_cache(
    front: Front, vllm_engine: VllmEngine
) -> None:
    async def hits() -> int:
        async with httpx.AsyncClient(trust_env=False) as http:
            metrics = (await http.get(f"{vllm_engine.url}/metrics")).text
        lines = [line for line in metrics.splitlines() if line.startswith("vllm:prefix_cache_hits_total{")]
        return int(sum(float(line.rpartition(" ")[2]) for line in lines))

    agent = await front.open(sampling={"temperature": 0.7})
    messages: list[Any] = [{"role": "user", "content": "Add 17 and 25, and then 99. " * 12}]
    gained = []
    for _ in range(4):
        before = await hits()
        message = (await agent.chat(False, messages=messages, max_tokens=30)).choices[0].message
        gained.append(await hits() - before)
        messages += [message, {"role": "user", "content": "And then multiply that by 3, please. " * 5}]
    calls = (await agent.trajectory())["calls"]
    held = [len(call["prompt_token_ids"]) + len(call["token_ids"]) - 1 for call in calls[:-1]]
    assert held[0] > BLOCK
    assert gained[1:] == [tokens // BLOCK * BLOCK for tokens in held]
    assert gained[1] < gained[3]
