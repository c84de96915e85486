"""Anthropic token counting: the prompt that is counted is the one that a message would be answered to."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from gateway_builders import END, always, letters, serving
from messages_builders import WEATHER, assistant, body, client, prompt, text, user

from agentrl.gateway.dialects.count_tokens import decode_count, encode_count
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.request import Conversation


def count(*messages: dict[str, Any], **fields: Any) -> Conversation:
    [found] = decode_count(orjson.dumps({"messages": messages, **fields})).prompts
    assert isinstance(found, Conversation)
    return found


def test_the_counted_prompt_is_that_of_the_same_request() -> None:
    fields = {"system": "s", "tools": [WEATHER], "thinking": {"type": "disabled"}, "tool_choice": {"type": "any"}}
    assert count(user("q"), model="policy", **fields) == prompt(user("q"), **fields)
    assert encode_count(7) == b'{"input_tokens":7}'


def test_a_conversation_that_ends_with_the_assistant_can_be_counted() -> None:
    assert count(user("q"), assistant(text("a"))).messages[-1] == {"role": "assistant", "content": "a"}


def test_a_count_has_no_limit_of_tokens() -> None:
    with pytest.raises(Refusal, match="max_tokens"):
        decode_count(body())


async def test_the_counted_prompt_has_as_many_tokens_as_the_one_that_the_engine_gets() -> None:
    asked: dict[str, Any] = {"messages": [user("q")], "system": "be kind", "tools": [WEATHER]}
    async with serving(always([*letters("ok"), END])) as served:
        gateway, session = served.server.gateway, await served.open()
        counting = decode_count(orjson.dumps(asked))
        [counted] = await gateway.turns.plan(await gateway.session(session.id), counting, "")
        async with client(session) as sdk:
            answer = await sdk.messages.create(**asked, model="policy", max_tokens=16)
        assert len(counted.prompt_ids) == len(served.engine.prompts[0]) == answer.usage.input_tokens


async def test_counted_tokens_are_those_of_the_prompt() -> None:
    messages = [user("how warm?")]
    asked: dict[str, Any] = {"model": "policy", "messages": messages, "system": "be kind", "tools": [WEATHER]}
    async with serving(always([*letters("ok"), END])) as served:
        async with client(await served.open()) as sdk:
            counted = await sdk.messages.count_tokens(**asked)
            beta = await sdk.beta.messages.count_tokens(**asked)
            assert served.engine.prompts == []
            answer = await sdk.messages.create(**asked, max_tokens=16)
        assert counted.input_tokens == beta.input_tokens == len(served.engine.prompts[0]) == answer.usage.input_tokens
