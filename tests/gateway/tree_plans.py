"""Random sessions for the tests of random trees: what an agent does, and what the policy samples for it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st
from template_families import TemplateFamily
from tree_twin import Fault, Reply

Echo = Literal["whole", "no_reasoning", "respaced", "parts", "nulls"]
"""How the client sends an answer back; all are the same conversation."""
Delivery = Literal["kept", "repeated", "raced", "hung_up", "left", "keyed", "twice"]


@dataclass(frozen=True)
class Ask:
    """One request of a thread. `text` is the next question, or what its tools answer.

    Delivery: the answer is kept; lost and asked for again; asked for again while it is under way; the client hangs up
    after `ticks` rounds of the event loop and asks again, or leaves for good; sent twice with an idempotency key; sent
    twice because the agent means it.
    """

    thread: int
    text: str
    replies: tuple[Reply, ...]
    n: int = 1
    stream: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    echo: Echo = "whole"
    delivery: Delivery = "kept"
    ticks: int = 0
    pick: int = 0  # the choice to go on with


@dataclass(frozen=True)
class Together:
    """Requests in parallel, each in a thread of its own."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True)
class Edit:
    """A message is rewritten, all thoughts are dropped, all arguments respaced, or the last messages are taken back."""

    thread: int
    how: Literal["text", "thoughts", "arguments", "back"]
    at: int
    text: str


@dataclass(frozen=True)
class Compact:
    """All that was said gives way to a summary."""

    thread: int
    text: str


@dataclass(frozen=True)
class Fork:
    thread: int


@dataclass(frozen=True)
class SubAgent:
    system: str
    has_tools: bool


@dataclass(frozen=True)
class Swap:
    """New weights on every engine."""


Step = Ask | Together | Edit | Compact | Fork | SubAgent | Swap


@dataclass(frozen=True)
class Plan:
    history: Literal["append", "rerender"]
    system: str | None
    has_tools: bool
    tool_text: str  # the description of the tool
    max_tokens: int | None  # the session's limit
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Writing:
    """How a family's model writes a turn; `thoughts` and `call` are patterns. The turn ends by `end` or `call_end`."""

    thoughts: str
    says: str
    opens: str
    call: str
    between: str
    closes: str
    end: str
    call_end: str
    num_calls: int = 2


WRITINGS = {
    "llama3": Writing("<think>%s</think>", "", "", '{"name": "weather", "parameters": %s}', "", "", "<|eot_id|>",
                      "<|eom_id|>", num_calls=1),
    "mistral": Writing("<think>%s</think>", " ", "[TOOL_CALLS] [", '{"name": "weather", "arguments": %s}', ", ", "]",
                       "</s>", "</s>"),
    "qwen3": Writing("<think>\n%s\n</think>\n\n", "", "",
                     '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>', "\n", "", "<|im_end|>",
                     "<|im_end|>"),
    "deepseek_r1": Writing("%s</think>\n\n", "", "<｜tool▁calls▁begin｜>",
                           "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n%s\n```<｜tool▁call▁end｜>",
                           "\n", "<｜tool▁calls▁end｜>", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "glm45": Writing("\n<think>%s</think>\n", "", "",
                     "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>", "\n", "",
                     "<|user|>", "<|observation|>"),
    "harmony": Writing("<|channel|>analysis<|message|>%s<|end|><|start|>assistant", "<|channel|>final<|message|>", "",
                       " to=functions.weather<|channel|>commentary json<|message|>%s", "", "", "<|return|>",
                       "<|call|>", num_calls=1),
}  # fmt: skip


def written(family: TemplateFamily, thoughts: str | None, text: str, cities: list[str]) -> str:
    """A turn of the family's model, its end included."""
    writing = WRITINGS[family.name]
    turn = "" if thoughts is None else writing.thoughts % thoughts
    if not cities:
        return turn + writing.says + text + writing.end
    values = [city if family.call_value else json.dumps({"city": city}, ensure_ascii=False) for city in cities]
    calls = [writing.call % value for value in values[: writing.num_calls]]
    return turn + writing.opens + writing.between.join(calls) + writing.closes + writing.call_end


def tokens_of(family: TemplateFamily, text: str, style: list[int]) -> list[int]:
    """Ids of a text as a model may sample them: `style` says, piece by piece, whether text comes as the tokenizer has
    it, byte by byte or half and half, and whether a control token is itself or its spelling."""
    controls = sorted(map(re.escape, (*family.special, *family.marks)), key=len, reverse=True)
    found: list[int] = []
    for i, piece in enumerate(re.split(f"({'|'.join(controls)})", text)):
        kind = style[i % len(style)]
        if i % 2:
            found += family.odd(piece) if kind == 3 else [family.id(piece)]
        else:
            half = [0, len(piece), len(piece) // 2, 0][kind]
            found += family.odd(piece[:half]) + family.ids(piece[half:])
    return found


def texts(family: TemplateFamily) -> st.SearchStrategy[str]:
    """What nobody vouches for: words, half a call, and spellings of every control token."""
    words = ["hello", "é", "🔥", " ", "\n", "x", '{"a": 1}', "<", "name", "STOP"]
    spellings = [*family.special, *family.marks, "<think>", "</think>"]
    piece = st.one_of(st.sampled_from(words), st.sampled_from(spellings))
    return st.lists(piece, min_size=1, max_size=4).map("".join)


@st.composite
def replies(draw: st.DrawFn, family: TemplateFamily) -> Reply:
    text = texts(family)
    if draw(st.integers(0, 9)) == 0:
        token_ids = draw(st.lists(st.integers(0, family.backend.get_vocab_size() - 1), max_size=6))
    else:
        said = draw(st.one_of(st.sampled_from(["hello", "", "ok STOP more", "🔥é"]), text))
        thoughts = draw(st.one_of(st.none(), st.sampled_from(["hm", " let me think\n"]), text))
        num_calls = draw(st.sampled_from([0, 1, 1, 2]))
        city = st.sampled_from(["Köln", "🔥", 'a"b', "x<y", *family.special])
        cities = draw(st.lists(city, min_size=num_calls, max_size=num_calls))
        style = draw(st.lists(st.sampled_from([0, 1, 2, 0, 1, 2, 3]), min_size=1, max_size=5))
        token_ids = tokens_of(family, written(family, thoughts, said, cities), style)
    finish: Literal["stop", "length"] = "stop"
    if draw(st.integers(0, 7)) == 0:
        token_ids, finish = token_ids[: draw(st.integers(0, len(token_ids)))], "length"
    faults = st.builds(Fault, st.sampled_from(["die", "die", "swap", "abort", "error"]), st.integers(0, 12))
    return Reply(
        token_ids=tuple(token_ids),
        finish=finish,
        per_chunk=draw(st.sampled_from([1, 3, 100])),
        ticks=draw(st.integers(0, 2)),
        faults=tuple(draw(st.one_of(st.just([]), st.lists(faults, max_size=3)))),
        spoil=draw(st.sampled_from([None] * 12 + ["no_logprobs", "nan_logprobs", "wrong_spans"])),
    )


@st.composite
def asks(draw: st.DrawFn, family: TemplateFamily) -> Ask:
    n = draw(st.sampled_from([1, 1, 1, 2]))
    delivery = draw(st.sampled_from(["kept", "kept", "kept", "repeated", "raced", "hung_up", "left", "keyed", "twice"]))
    return Ask(
        thread=draw(st.sampled_from([0, 0, 1, 2])),
        text=draw(texts(family)),
        replies=tuple(draw(replies(family)) for _ in range(n * (2 if delivery in ("hung_up", "twice") else 1))),
        n=n,
        stream=draw(st.booleans()),
        max_tokens=draw(st.sampled_from([None, None, None, None, None, None, 1, 6, 30])),
        stop=draw(st.sampled_from([(), (), (), ("STOP",), ("lo", "OP m")])),
        echo=draw(st.sampled_from(["whole", "no_reasoning", "respaced", "parts", "nulls"])),
        delivery=delivery,
        ticks=draw(st.integers(0, 40)),
        pick=draw(st.integers(0, 1)),
    )


def steps(family: TemplateFamily) -> st.SearchStrategy[Step]:
    thread, text = st.integers(0, 3), texts(family)
    ask = asks(family)
    other = st.one_of(
        st.builds(Together, st.lists(ask, min_size=2, max_size=3).map(tuple)),
        st.builds(
            Edit, thread, st.sampled_from(["text", "thoughts", "arguments", "back"]), at=st.integers(0, 6), text=text
        ),
        st.builds(Compact, thread, text),
        st.builds(Fork, thread),
        st.builds(SubAgent, text, st.booleans()),
        st.just(Swap()),
    )
    return st.one_of(ask, ask, ask, other)


def plans(family: TemplateFamily) -> st.SearchStrategy[Plan]:
    text = texts(family)
    return st.builds(
        Plan,
        history=st.sampled_from(["append", "append", "rerender"]),
        system=st.one_of(st.none(), text),
        has_tools=st.sampled_from([True, True, False]),
        tool_text=text,
        max_tokens=st.sampled_from([None, None, None, None, 60, 200]),
        steps=st.lists(steps(family), min_size=4, max_size=9).map(tuple),
    )


def tool(description: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string", "description": description}}}
    return {"type": "function", "function": {"name": "weather", "description": description, "parameters": schema}}
