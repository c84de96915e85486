"""Random sessions for the tests of random trees: what an agent does, and what the policy samples for it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from hypothesis import strategies as st
from template_families import TemplateFamily
from tree_twin import Failing, Fault, Reply, Spoiling

Echo = Literal["whole", "no_reasoning", "respaced", "parts", "nulls"]
"""How the client sends an answer back; all are the same conversation."""
Rewriting = Literal["text", "thoughts", "arguments", "back"]
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
    how: Rewriting
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


def text_of(rng: Random, family: TemplateFamily) -> str:
    """What nobody vouches for: words, half a call, and spellings of every control token."""
    words = ["hello", "é", "🔥", " ", "\n", "x", '{"a": 1}', "<", "name", "STOP"]
    spellings = [*family.special, *family.marks, "<think>", "</think>"]
    return "".join(rng.choice(rng.choice([words, spellings])) for _ in range(rng.randint(1, 4)))


def call_of_tools(rng: Random, family: TemplateFamily) -> list[int]:
    """A turn that calls tools, and is read so."""
    cities = rng.choices(["Köln", "🔥", "hello"], k=rng.randint(1, 2))
    style = rng.choices([0, 1, 2], k=5)
    return tokens_of(family, written(family, rng.choice([None, "hm"]), "", cities), style)


def any_turn(rng: Random, family: TemplateFamily) -> list[int]:
    """A turn in one of many ways to write it as tokens, or ids at random."""
    if rng.random() < 0.15:
        return [rng.randrange(family.backend.get_vocab_size()) for _ in range(rng.randint(0, 6))]
    said = rng.choice(["hello", "", "ok STOP more", "🔥é", text_of(rng, family)])
    thoughts = rng.choice([None, None, "hm", " let me think\n", text_of(rng, family)])
    cities = rng.choices(["Köln", 'a"b', "x<y", "</arg_value>"], k=rng.choice([0, 0, 1, 2]))
    return tokens_of(family, written(family, thoughts, said, cities), rng.choices([0, 1, 2, 0, 1, 2, 3], k=5))


def reply_of(rng: Random, family: TemplateFamily, *, calm: bool) -> Reply:
    token_ids = call_of_tools(rng, family) if calm else any_turn(rng, family)
    is_cut = not calm and rng.random() < 0.12
    faults: list[Failing] = ["die", "die", "swap", "abort", "error"]
    spoils: list[Spoiling] = ["no_logprobs", "nan_logprobs", "wrong_spans"]
    return Reply(
        token_ids=tuple(token_ids[: rng.randint(0, len(token_ids))] if is_cut else token_ids),
        finish="length" if is_cut else "stop",
        per_chunk=rng.choice([1, 3, 100]),
        ticks=rng.randint(0, 2),
        faults=tuple(Fault(rng.choice(faults), rng.randint(0, 12)) for _ in range(rng.choice([0, 0, 0, 1, 2, 3]))),
        spoil=rng.choice(spoils) if rng.random() < 0.08 else None,
    )


def ask_of(rng: Random, family: TemplateFamily) -> Ask:
    """Half of them are calm: they call tools, and nothing cuts them off."""
    calm = rng.random() < 0.5
    n = 1 if calm else rng.choice([1, 1, 2])
    retold: list[Delivery] = ["repeated", "raced", "hung_up", "left", "keyed", "twice"]
    delivery = rng.choice(retold) if rng.random() < 0.4 else "kept"
    echoes: list[Echo] = ["whole", "no_reasoning", "respaced", "parts", "nulls"]
    return Ask(
        thread=rng.choice([0, 0, 1]) if calm else rng.randint(0, 2),
        text=text_of(rng, family),
        replies=tuple(
            reply_of(rng, family, calm=calm) for _ in range(n * (2 if delivery in ("hung_up", "twice") else 1))
        ),
        n=n,
        stream=rng.random() < 0.5,
        max_tokens=None if calm else rng.choice([None, None, None, 1, 6, 30]),
        stop=() if calm else rng.choice([(), ("STOP",), ("lo", "OP m")]),
        echo=rng.choice(echoes),
        delivery=delivery,
        ticks=rng.randint(0, 40),
        pick=rng.randint(0, 1),
    )


def step_of(rng: Random, family: TemplateFamily) -> Step:
    if rng.random() < 0.7:
        return ask_of(rng, family)
    thread, text = rng.randint(0, 2), text_of(rng, family)
    edits: list[Rewriting] = ["text", "thoughts", "arguments", "back"]
    together = Together(tuple(ask_of(rng, family) for _ in range(rng.randint(2, 3))))
    others: list[Step] = [
        together,
        together,
        together,
        Edit(thread, rng.choice(edits), rng.randint(0, 6), text),
        Edit(thread, rng.choice(edits), rng.randint(0, 6), text),
        Compact(thread, text),
        Fork(thread),
        Fork(thread),
        SubAgent(text, rng.random() < 0.5),
        Swap(),
    ]
    return rng.choice(others)


def plans(family: TemplateFamily) -> st.SearchStrategy[Plan]:
    """Each step is made from a number of its own, so that what fails shrinks to the steps that matter."""
    seed = st.integers(0, 2**32 - 1)

    def plan(first: int, of_steps: list[int]) -> Plan:
        rng = Random(first)
        return Plan(
            history=rng.choice(["append", "append", "rerender"]),
            system=rng.choice([None, text_of(rng, family)]),
            has_tools=rng.random() < 0.7,
            tool_text=text_of(rng, family),
            max_tokens=rng.choice([*[None] * 6, 60, 100, 300]),
            steps=tuple(step_of(Random(number), family) for number in of_steps),
        )

    return st.builds(plan, seed, st.lists(seed, min_size=3, max_size=9))


def tool(description: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string", "description": description}}}
    return {"type": "function", "function": {"name": "weather", "description": description, "parameters": schema}}
