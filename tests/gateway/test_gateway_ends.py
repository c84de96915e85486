"""Which tokens end a turn, and whether a prompt ends inside a thought, for the chat templates of real families."""

from __future__ import annotations

import json
from typing import Any

import pytest
from template_families import (
    DEEPSEEK,
    FAMILIES,
    GLM,
    HARMONY,
    LLAMA3,
    MISTRAL,
    QWEN3,
    TemplateFamily,
    answer,
    call,
    result,
    tokenizer_of,
    user,
)

from agentrl.errors import ConfigError
from agentrl.gateway.render import Renderer

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
QUESTION = [{"role": "system", "content": "be brief"}, user("hi")]


def test_the_tokens_that_end_a_turn_are_those_of_eos_the_generation_config_and_the_template() -> None:
    expected = {
        LLAMA3: {"<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"},
        MISTRAL: {"</s>"},
        QWEN3: {"<|im_end|>", "<|endoftext|>"},
        DEEPSEEK: {"<｜end▁of▁sentence｜>"},
        GLM: {"<|endoftext|>", "<|user|>", "<|observation|>"},
        HARMONY: {"<|return|>", "<|call|>", "<|endoftext|>"},  # <|end|> only ends a message of several
    }
    for family in FAMILIES:
        assert family.renderer.end_ids == {family.id(text) for text in expected[family]}


@every_family
def test_the_templates_own_ends_are_found_without_a_generation_config(family: TemplateFamily) -> None:
    found = Renderer(tokenizer_of(family)).end_ids
    own = {family.id(family.eos), family.sampled_answer("a")[-1], family.sampled_call("a")[-1]}
    assert found == own


@pytest.mark.parametrize("eos", [["<|endoftext|>", "<|eom_id|>"], "<|eom_id|>"])
def test_end_tokens_of_a_loaded_folder_include_its_generation_config(tmp_path: Any, eos: Any) -> None:
    wanted = ["<|end_of_text|>", "<|eom_id|>"] if isinstance(eos, list) else [eos]
    numbers = [LLAMA3.id(text) for text in wanted]
    tokenizer_of(LLAMA3).save_pretrained(tmp_path)
    config = {"eos_token_id": numbers if isinstance(eos, list) else numbers[0]}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert Renderer.load(tmp_path).end_ids == {LLAMA3.id("<|eot_id|>"), *numbers}


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": [true]}'])
def test_a_damaged_generation_config_is_a_configuration_error(tmp_path: Any, content: str) -> None:
    tokenizer_of(LLAMA3).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        Renderer.load(tmp_path)


def test_reasoning_is_open_where_the_generation_prompt_opened_it_only() -> None:
    open_of = DEEPSEEK.renderer.reasoning_open
    assert open_of(DEEPSEEK.renderer.first(QUESTION))
    assert not open_of(DEEPSEEK.renderer.first(QUESTION, template_kwargs={"thinking": False}))
    assert not open_of(DEEPSEEK.renderer.first([user("q"), call("Rome"), result("rain")]))

    prompt = QWEN3.renderer.first(QUESTION)
    assert not QWEN3.renderer.reasoning_open(prompt)
    assert QWEN3.renderer.reasoning_open([*prompt, QWEN3.id("<think>")])
    closed = QWEN3.renderer.first(QUESTION, template_kwargs={"enable_thinking": False})
    assert not QWEN3.renderer.reasoning_open(closed)


def test_a_thought_that_was_cut_off_in_an_earlier_turn_is_not_open() -> None:
    sample = QWEN3.ids("<think>\nlet me")
    prompt = QWEN3.renderer.first([user("q")])
    added = QWEN3.renderer.extension([user("q")], answer("<think>\nlet me"), [user("more")], None, sample)
    assert added is not None
    assert QWEN3.renderer.reasoning_open([*prompt, *sample])
    assert not QWEN3.renderer.reasoning_open([*prompt, *sample, *added])


def test_a_mark_of_reasoning_that_is_no_token_is_seen_in_the_text() -> None:
    assert LLAMA3.renderer.reasoning_open(LLAMA3.ids("<|end_header_id|>\n\n<think>\nhello"))
    assert not LLAMA3.renderer.reasoning_open(LLAMA3.ids("<|end_header_id|>\n\n<think>hello</think>"))
    assert not LLAMA3.renderer.reasoning_open(LLAMA3.ids("<think><|eot_id|><|start_header_id|>user"))
