"""What a parser of sampled text is. One family of models is one file; see `parsers.FAMILIES`."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.gateway.deltas import Delta
from agentrl.types import Constraint

ALPHABET = string.ascii_letters + string.digits

Tools = Sequence[Mapping[str, Any]]
"""In chat completions' form: {"type": "function", "function": {"name", "parameters", …}}."""


def new_call_id() -> str:
    """Nine letters and digits: the only form that every family's template takes (Mistral's checks it)."""
    return "".join(secrets.choice(ALPHABET) for _ in range(9))


@dataclass(frozen=True)
class ParseOptions:
    tools: Tools = ()  # empty: nothing is parsed as a call
    in_reasoning: bool = False  # the prompt opened the reasoning already
    new_id: Callable[[], str] = new_call_id


class OutputParser(Protocol):
    """Sampled text → deltas. One per answer; how the text is cut into feeds does not change what they add up to.

    What is no whole call stays text, so that nothing is lost and nothing half-written is run.
    """

    def feed(self, text: str) -> list[Delta]: ...

    def finish(self, *, stopped: bool) -> list[Delta]:
        """What was held back. `stopped`: the model ended its turn; False when it was cut off by a limit."""
        ...

    @property
    def reasoning_end(self) -> int:
        """How many characters of the text fed so far are the reasoning with its marks."""
        ...


class Forced(Protocol):
    def __call__(self, tools: Tools, name: str | None, parallel: bool, in_reasoning: bool = False) -> Constraint:
        """What keeps an engine to at least one call: of tool `name` (None: of any), several only if `parallel`.

        Reasoning may come first, and must be ended first if the prompt opened it. Raises Refusal: this family's
        calls are not known.
        """
        ...


@dataclass(frozen=True)
class Family:
    """How a family of models writes tool calls and reasoning."""

    name: str
    parser: Callable[[ParseOptions], OutputParser]
    forced: Forced
    call_end: str  # the mark that ends a call, by which sampling is ended after the first; "" when there is none
    """No stop token beside a `forced` constraint: xgrammar allows none before its grammar ends."""
    recognises: Callable[[str], bool]  # by the chat template's text
