"""When two messages are the same message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.gateway import canonical
from agentrl.gateway.canonical import LastKeys, conversation_keys


def key(*messages: dict[str, Any], tools: list[dict[str, Any]] | None = None) -> bytes:
    return conversation_keys(messages, tools)[-1]


def answer(arguments: str = '{"a": 1}', call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call], **fields}


@pytest.mark.parametrize(
    "other",
    [
        answer(content=None),
        answer(content=""),
        answer(content=[], refusal=None, audio=None, annotations=[]),
        dict(reversed(list(answer().items()))),
        answer(arguments='{"a":1}'),
    ],
)
def test_an_echo_in_another_shape_is_the_same_message(other: dict[str, Any]) -> None:
    assert key(other) == key(answer())


@pytest.mark.parametrize(
    "other",
    [
        answer(content="x"),
        answer(arguments='{"a": 2}'),
        answer(arguments='{"a": 1'),
        answer(call_id="c2"),
        {"role": "assistant"},
        {"role": "user", "tool_calls": answer()["tool_calls"]},
    ],
)
def test_another_role_text_id_or_argument_is_another_message(other: dict[str, Any]) -> None:
    assert key(other) != key(answer())


def test_text_parts_are_their_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert key({"role": "user", "content": parts}) == key({"role": "user", "content": "ab"})


def test_the_order_of_messages_and_their_borders_matter() -> None:
    a, b = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    assert key(a, b) != key(b, a)
    assert key(a, b) != key({"role": "user", "content": "ab"})


def test_other_tools_make_another_conversation() -> None:
    message = {"role": "user", "content": "a"}
    assert key(message, tools=[{"name": "f"}]) != key(message)
    assert key(message, tools=[]) == key(message)


ROLES_AND_TEXTS = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "tool"]), st.text("ab")),
    max_size=5,
)


@given(
    st.lists(
        st.tuples(ROLES_AND_TEXTS, st.sampled_from([None, [{"type": "function", "function": {"name": "f"}}]])),
        max_size=4,
    )
)
def test_keys_that_were_found_from_the_request_before_are_those_of_the_conversation(requests: list[Any]) -> None:
    keys = LastKeys()
    for messages, tools in requests:
        assert keys.of(messages, tools, {}) == conversation_keys(messages, tools, {})


def test_of_a_conversation_that_goes_on_only_what_is_new_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, seen = LastKeys(), list[Any]()
    question, answered = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    keys.of([question], None)
    extend_key = canonical.extend_key

    def watched(key: bytes, message: Mapping[str, Any]) -> bytes:
        seen.append(message)
        return extend_key(key, message)

    monkeypatch.setattr(canonical, "extend_key", watched)
    keys.of([question, answered], None)
    assert seen == [answered]
