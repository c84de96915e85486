"""What the Responses API has and this gateway has not: refused, naming the field."""

from __future__ import annotations

from typing import Any

import pytest
from responses_builders import CALL, WEATHER_TOOL, decoded, responding

from agentrl.gateway.dialects.responses import RESPONSES
from agentrl.gateway.refusal import Refusal, invalid

IMAGE = {"type": "input_image", "image_url": "data:", "detail": "auto"}


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("input", {}),
        ("input", {"input": []}),
        ("input[0].content[0].type", {"input": [{"role": "user", "content": [IMAGE]}]}),
        (
            "input[0].content[0].type",
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        ),
        ("input[1].type", {"input": [{"role": "user", "content": "q"}, {"type": "web_search_call", "id": "w"}]}),
        ("input[0].type", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        ("input[0].type", {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "i"}]}),
        ("input[0].role", {"input": [{"role": "tool", "content": "q"}]}),
        ("input[0].colour", {"input": [{"role": "user", "content": "q", "colour": "red"}]}),
        ("input[0].caller", {"input": [CALL | {"caller": {"type": "program", "caller_id": "p"}}]}),
        ("input[0].namespace", {"input": [CALL | {"namespace": "n"}]}),
        ("input[0]", {"input": [{"type": "function_call_output", "output": "x"}]}),
        ("input[0].output[0].type", {"input": [{"type": "function_call_output", "call_id": "c", "output": [IMAGE]}]}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].type", {"tools": [{"type": "custom", "name": "n", "format": {"type": "grammar"}}]}),
        ("tools[0].defer_loading", {"tools": [WEATHER_TOOL | {"defer_loading": True}]}),
        ("tool_choice", {"tools": [WEATHER_TOOL], "tool_choice": "any"}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice.name", {"tools": [WEATHER_TOOL], "tool_choice": {"type": "function", "name": "now"}}),
        ("tool_choice.type", {"tools": [WEATHER_TOOL], "tool_choice": {"type": "allowed_tools"}}),
        ("background", {"background": True}),
        ("truncation", {"truncation": "auto"}),
        ("conversation", {"conversation": "conv_1"}),
        ("prompt", {"prompt": {"id": "p"}}),
        ("context_management", {"context_management": [{"type": "compaction"}]}),
        ("moderation", {"moderation": {"model": "m"}}),
        ("prompt_cache_options.prewarm", {"prompt_cache_options": {"prewarm": True}}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("top_logprobs", {"top_logprobs": 21}),
        ("temperature", {"temperature": "hot"}),
        ("text.format.type", {"text": {"format": {"type": "grammar"}}}),
        ("text.format", {"text": {"format": {"type": "json_schema", "name": "n"}}}),
        ("reasoning.context", {"reasoning": {"context": "current_turn"}}),
        ("n", {"n": 2}),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field: str, body: dict[str, Any]) -> None:
    if field != "input":
        body = {"input": "q", **body}
    with pytest.raises(Refusal) as refused:
        decoded(**body)
    assert (refused.value.status, refused.value.param) == (400, field)
    assert refused.value.message.startswith(field) or field in refused.value.message


def test_refusals_of_the_core_name_the_field_as_this_api_does() -> None:
    assert b'"param":"input"' in RESPONSES.error(invalid("messages", "too long"))
    stream = RESPONSES.stream(decoded(input="q")[1], responding())
    assert b'"param":"max_output_tokens"' in stream.fail(invalid("max_tokens", "too many"))
