"""What the written episodes of all environments have in common; they are for supervised warm starts.

Each fault is a choice at one place, not noise: a policy gradient can tell it from the right way.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentrl.messages import Message

P = TypeVar("P")

Behaviour = str
Mix = Mapping[Behaviour, float]
"""Weights by behaviour."""

CORRECT: Mix = {"correct": 1.0}


@dataclass(frozen=True)
class Transcript(Generic[P]):
    """One episode on one problem: the user's question, then what the assistant and its tools said in turn."""

    behaviour: Behaviour
    problem: P
    messages: list[Message]


def drawn_from(mix: Mix, rng: random.Random) -> Behaviour:
    return rng.choices(list(mix), weights=list(mix.values()))[0]


def broken_calls(good: str) -> list[str]:
    """A well-formed call, spoilt in ways that no parser takes for one."""
    return [
        good.replace('"}}\n', '"}\n'),
        good.replace('":{"', '":"'),
        good.removesuffix("\n</tool_call>"),
        good.removeprefix("<tool_call>\n"),
    ]


def wordy(answer: object) -> list[str]:
    """The right answer, and not it alone."""
    return [f"The answer is {answer}.", f"Answer: {answer}", f"={answer}"]
