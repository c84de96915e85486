"""Families of chat templates for tests: a template in `templates/`, a byte-level tokenizer with the family's control
tokens (special or not, as the real ones have them), and what the family's models sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from agentrl.gateway.render import Renderer

SENTENCES = ["hello world, the answer to the question is hello", "system user assistant tool function call name city"]
CALL_ID = "abc123def"  # nine letters and digits, as Mistral's template wants them
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@dataclass(frozen=True, eq=False)
class TemplateFamily:
    """`says` and `calls` are what the model writes around an answer's text and around a call's arguments.

    `call_value` says that the argument stands there by itself, and not a JSON object.
    """

    name: str
    special: tuple[str, ...]
    marks: tuple[str, ...]  # added tokens that are not special
    bos: str | None
    eos: str
    says: tuple[str, str]
    calls: tuple[str, str]
    other_ends: tuple[str, ...] = ()  # of generation_config.json beside EOS
    adds_bos: bool = False  # the tokenizer's own doing, where special tokens are asked for
    arguments_as_text: bool = False
    call_value: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)  # with which an answer without thoughts round-trips

    @property
    def template(self) -> str:
        return (Path(__file__).parent / "templates" / f"{self.name}.jinja").read_text()

    @property
    def backend(self) -> Tokenizer:
        return backend_of(self)

    @property
    def renderer(self) -> Renderer:
        return renderer_of(self)

    def id(self, token: str) -> int:
        number = self.backend.token_to_id(token)
        assert number is not None, token
        return int(number)

    def ids(self, text: str) -> list[int]:
        """Control tokens matched."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def odd(self, text: str) -> list[int]:
        """One token for each byte: what the tokenizer would not give, and a model may sample. No control tokens."""
        letters = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)]
        return [self.id(letter) for pieces in letters for piece, _ in pieces for letter in piece]

    def decoded(self, token_ids: Sequence[int]) -> str:
        return str(self.backend.decode(list(token_ids), skip_special_tokens=False))

    def controls_in(self, token_ids: Sequence[int]) -> list[int]:
        controls = self.backend.get_added_tokens_decoder()
        return [token_id for token_id in token_ids if token_id in controls]

    def written(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, *, prompt: bool = True, **variables: Any
    ) -> str:
        """The conversation as transformers writes it."""
        mine = [self._for_template(message) for message in messages]
        kwargs = {**self.variables, **variables}
        text = tokenizer_of(self).apply_chat_template(
            mine, tools=tools, add_generation_prompt=prompt, tokenize=False, **kwargs
        )
        return str(text)

    def sampled_answer(self, text: str, *, end: bool = True) -> list[int]:
        before, after = self.says
        return [*self.ids(before), *self.odd(text), *(self.ids(after) if end else [])]

    def sampled_call(self, city: str) -> list[int]:
        before, after = self.calls
        middle = city if self.call_value else arguments(city)
        return [*self.ids(before), *self.odd(middle), *self.ids(after)]

    def _for_template(self, message: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(message)
        if calls := message.get("tool_calls"):
            functions = [dict(call["function"]) for call in calls]
            if not self.arguments_as_text:
                functions = [function | {"arguments": json.loads(function["arguments"])} for function in functions]
            found["tool_calls"] = [{**c, "function": f} for c, f in zip(calls, functions, strict=True)]
            found["content"] = found["content"] or ""
        return found


def arguments(city: str) -> str:
    return json.dumps({"city": city}, ensure_ascii=False)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(city: str, *, name: str = "weather", raw: str | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments(city) if raw is None else raw}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": CALL_ID, "type": "function", "function": function}],
    }


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": CALL_ID, "content": text}


LLAMA3 = TemplateFamily(
    name="llama3",
    special=(
        "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
        "<|python_tag|>",
    ),
    marks=(),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    says=("", "<|eot_id|>"),
    calls=('{"name": "weather", "parameters": ', "}<|eot_id|>"),
    other_ends=("<|end_of_text|>", "<|eom_id|>"),
    adds_bos=True,
)  # fmt: skip

MISTRAL = TemplateFamily(
    name="mistral",
    special=(
        "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    ),
    marks=(),
    bos="<s>",
    eos="</s>",
    says=(" ", "</s>"),
    calls=('[TOOL_CALLS] [{"name": "weather", "arguments": ', f', "id": "{CALL_ID}"}}]</s>'),
    adds_bos=True,
)  # fmt: skip

QWEN3 = TemplateFamily(
    name="qwen3",
    special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    marks=("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    bos=None,
    eos="<|im_end|>",
    says=("", "<|im_end|>"),
    calls=('<tool_call>\n{"name": "weather", "arguments": ', "}\n</tool_call><|im_end|>"),
    other_ends=("<|endoftext|>",),
)

DEEPSEEK = TemplateFamily(
    name="deepseek_r1",
    special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"),
    marks=(
        "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>",
        "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    ),
    bos="<｜begin▁of▁sentence｜>",
    eos="<｜end▁of▁sentence｜>",
    says=("", "<｜end▁of▁sentence｜>"),
    calls=(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n",
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
    ),
    adds_bos=True,
    arguments_as_text=True,
    variables={"thinking": False},
)  # fmt: skip

GLM = TemplateFamily(
    name="glm45",
    special=(
        "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    ),
    marks=(
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>",
        "</arg_key>", "<arg_value>", "</arg_value>", "/nothink",
    ),
    bos=None,
    eos="<|endoftext|>",
    says=("\n<think></think>\n", "<|user|>"),
    calls=(
        "\n<think></think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>",
        "</arg_value>\n</tool_call><|observation|>",
    ),
    other_ends=("<|user|>", "<|observation|>"),
    call_value=True,
)  # fmt: skip

HARMONY = TemplateFamily(
    name="harmony",
    special=(
        "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
        "<|message|>", "<|call|>",
    ),
    marks=(),
    bos="<|startoftext|>",
    eos="<|return|>",
    says=("<|channel|>final<|message|>", "<|return|>"),
    calls=(" to=functions.weather<|channel|>commentary json<|message|>", "<|call|>"),
    other_ends=("<|endoftext|>", "<|call|>"),
)  # fmt: skip

FAMILIES = (LLAMA3, MISTRAL, QWEN3, DEEPSEEK, GLM, HARMONY)


@cache
def backend_of(family: TemplateFamily) -> Tokenizer:
    """A byte-level BPE with every byte in it, in which `hello` is one token, and the family's control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in family.special])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in family.marks])
    if family.adds_bos:
        assert family.bos is not None
        bos = (family.bos, tokenizer.token_to_id(family.bos))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{family.bos} $A", special_tokens=[bos])
    return tokenizer


@cache
def tokenizer_of(family: TemplateFamily, template: str | None = None) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend_of(family),
        bos_token=family.bos,
        eos_token=family.eos,
        chat_template=template or family.template,
    )


@cache
def renderer_of(family: TemplateFamily) -> Renderer:
    return Renderer(tokenizer_of(family), [family.id(text) for text in family.other_ends])
