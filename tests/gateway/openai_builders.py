"""Builders for tests of the OpenAI dialects: answers as the core reads them, and the SDK that folds their streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
from gateway_builders import END, Opened, backend, ids, letters, renderer, user
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from agentrl.engine.scripted import scripted_logprob
from agentrl.gateway.deltas import Answer, Piece
from agentrl.gateway.dialects.base import Dialect, Responding
from agentrl.gateway.generation import Generation
from agentrl.gateway.planner import Planner
from agentrl.gateway.session import Session
from agentrl.types import FinishReason, TokenChunk

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>{"name":"now","arguments":{}}</tool_call>'
RESPONDING = Responding(
    response_id="chatcmpl-1",
    created=1_700_000_000,
    model="policy",
    token_bytes=renderer().token_bytes,
    text=renderer().spelled,
)
Sampled = tuple[list[int], FinishReason]


@asynccontextmanager
async def sdk_of(session: Opened, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    given = {"max_retries": 0, "timeout": 30, **options}
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, **given) as sdk:
        yield sdk


@st.composite
def samples(draw: st.DrawFn) -> Sampled:
    """Tokens that a policy may sample: text, thoughts, calls whole and broken, characters cut in the middle."""
    texts = ["hello", " world", "é🔥", "<think>", "</think>", CALL, NOW, "<tool_call>", "</tool_call>", "\n", "stop"]
    known = [*map(ids, texts), *map(letters, texts), letters("🔥")[:2], ids(CALL)[:9]]
    anything = st.lists(st.integers(0, backend().get_vocab_size() - 1), max_size=3)
    parts = draw(st.lists(st.sampled_from(known) | anything, max_size=6))
    token_ids = [token_id for part in parts for token_id in part]
    ended = draw(st.booleans())
    return ([*token_ids, END], "stop") if ended else (token_ids, draw(st.sampled_from(["stop", "length"])))


def generated(
    dialect: Dialect[Any], body: dict[str, Any], sampled: Sampled, cuts: Iterable[int] | None
) -> tuple[Answer, Any, list[Piece]]:
    """The core's answer to a request: listened to in chunks that end at `cuts`, or (None) read whole at its end."""
    turn, asked = dialect.decode(json.dumps(body).encode())
    planner, session = Planner(renderer()), Session("s", b"", now=0.0, mode="eval")
    [plan] = planner.plan(session, turn, RESPONDING.response_id)
    pieces: list[Piece] = []
    generation = Generation(plan, plan.sampling, None if cuts is None else pieces.append)
    token_ids, finish_reason = sampled
    ends = sorted({*(cut for cut in cuts or () if cut < len(token_ids)), len(token_ids)})
    for begin, end in zip([0, *ends], ends, strict=False):
        if not generation.ended:
            generation.add(chunk_of(token_ids[begin:end], finish_reason if end == len(token_ids) else None), None)
    generation.finish()
    generation.sample.end_segment("engine-0", None, 0)
    call = generation.sample.call(RESPONDING.response_id, generation.message(), engine_id="engine-0", parent=None)
    return generation.answer(call, count_reasoning=planner.count_reasoning), asked, pieces


def chunk_of(token_ids: Sequence[int], finish_reason: FinishReason | None) -> TokenChunk:
    return TokenChunk(
        token_ids=list(token_ids),
        logprobs=[scripted_logprob(token_id, 0) for token_id in token_ids],
        top_logprobs=[[(token_id, scripted_logprob(token_id, 0)), (token_id + 1, -9.0)] for token_id in token_ids],
        finish_reason=finish_reason,
    )


def stream_of(dialect: Dialect[Any], answer: Answer, asked: Any, pieces: Sequence[Piece]) -> bytes:
    encoder = dialect.stream(asked, RESPONDING)
    parts = [encoder.begin(answer.call.prompt_token_ids), *(encoder.piece(0, piece) for piece in pieces)]
    return b"".join([*parts, encoder.end([answer])])


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The JSON of each event; the last one says that it is done."""
    *events, done, nothing = stream.split(b"\n\n")
    assert (done, nothing) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def folded(chunks: Iterable[ChatCompletionChunk]) -> dict[str, Any]:
    """What the SDK adds the chunks up to, in the terms of a whole completion."""
    state: Any = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(chunk)
    return comparable(state.current_completion_snapshot)


def comparable(completion: ChatCompletion) -> dict[str, Any]:
    """Without what chunks have beside (the place of a call in the list), and with calls numbered: ids are random."""
    found = json.loads(completion.to_json())
    for choice in found["choices"]:
        message = {name: value for name, value in choice["message"].items() if value is not None}
        for number, call in enumerate(message.get("tool_calls") or []):
            call["id"] = number
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        choice["message"] = message
    return {name: value for name, value in found.items() if value is not None}


async def streamed(session: Opened, **body: Any) -> list[ChatCompletionChunk]:
    """All chunks of the SDK's plain stream."""
    async with sdk_of(session) as sdk:
        chunks = await sdk.chat.completions.create(model="policy", stream=True, **{"messages": [user("q")], **body})
        return [chunk async for chunk in chunks]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
