"""The language of chat templates: what transformers promises them, and what the sandbox keeps from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from template_families import QWEN3, TOOL, tokenizer_of, user

from agentrl.errors import ConfigError
from agentrl.gateway.template import RenderError, Template

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FEATURES = {
    "json": "{{ tools | tojson }}|{{ messages | tojson(indent=2) }}|{{ tools | tojson(indent=4, sort_keys=true) }}",
    "blocks": "{% if true %}\n  a\n{% endif %}\n  {% set x = 1 %}\nb{{ x }}",
    "loop controls": "{% for m in messages %}{{ m.content }}{% if loop.first %}{% break %}{% endif %}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "what is missing": "{{ messages[0].nothing is defined }}{{ messages[0].nothing }}{{ documents }}{{ x is defined }}",
    "dicts": "{% for k, v in messages[0].items() %}{{ k }}={{ v }}{% endfor %}{{ messages[0].get('role') }}",
    "strings": "{{ messages[0].content.strip().upper().split('L') }}{{ '{}'.format(messages[0].content) }}",
    "loop": "{% for m in messages %}{{ loop.last }}{{ loop.previtem is defined }}{{ loop.length }}{% endfor %}",
    "namespace": "{% set n = namespace(a=0) %}{% for m in messages %}{% set n.a = n.a + 1 %}{% endfor %}{{ n.a }}",
    "special tokens": "{{ bos_token }}{{ eos_token }}",
    "variables": "{{ mood }}{{ add_generation_prompt }}",
}


def rendered(source: Any, messages: Any = ({"role": "user", "content": "q"},), tools: Any = None, **more: Any) -> str:
    return Template(source, {}).render(list(messages), tools, more, generation_prompt=False)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_template_writes_what_it_writes_in_transformers(feature: str) -> None:
    tokenizer = tokenizer_of(QWEN3, FEATURES[feature])
    messages = [user(" hello "), {"role": "assistant", "content": "é<b>"}]
    expected = tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False, mood="calm")
    template = Template(FEATURES[feature], tokenizer.special_tokens_map)
    assert template.render(messages, [TOOL], {"mood": "calm"}, generation_prompt=False) == expected


@given(value=JSON)
def test_json_is_written_as_transformers_writes_it(value: Any) -> None:
    source = "{{ mood | tojson }}|{{ mood | tojson(indent=4) }}|{{ mood | tojson(indent=2) }}"
    tokenizer = tokenizer_of(QWEN3, source)
    assert rendered(source, mood=value) == tokenizer.apply_chat_template([user("q")], tokenize=False, mood=value)


def test_the_date_is_a_function_of_templates() -> None:
    assert rendered("{{ strftime_now('%Y') }}").isdigit()


def test_of_several_templates_the_one_for_tools_is_taken_with_tools() -> None:
    named = {"default": "plain", "tool_use": "with tools"}
    assert rendered(named) == "plain"
    assert rendered(named, tools=[TOOL]) == "with tools"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].__class__.__init__.__globals__ }}",
        "{{ messages[0].get.__self__.__class__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ messages[0].pop('role') }}",
        "{{ '{0.__class__.__mro__}'.format(messages[0].content) }}",
    ],
)
def test_a_template_can_neither_leave_the_sandbox_nor_change_the_messages(source: str) -> None:
    messages = [{"role": "user", "content": "q"}]
    with pytest.raises(RenderError):
        rendered(source, messages)
    assert messages == [{"role": "user", "content": "q"}]


def test_a_template_that_is_no_template_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="cannot be compiled"):
        Template("{% if %}", {})


def test_no_messages_are_refused() -> None:
    with pytest.raises(RenderError, match="at least one"):
        rendered("x", [])
