"""How far recorded ids are from what a fresh rendering of the same conversation would give.

They differ where a sample is not spelt as the tokenizer would spell it, and where the template rewrites history (drops
thoughts, moves tools). Recorded ids are what is trained; this only counts what re-tokenising would have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct


class Drift(Struct, frozen=True):
    """Counts of tokens, each up to the end of the last answer, without what ends its turn."""

    tokens_recorded: int
    tokens_rerendered: int
    common_prefix: int  # equal from the beginning


class Rerenders(Protocol):
    """What is needed of a renderer."""

    end_ids: set[int]

    def finished(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] = {},
    ) -> list[int]: ...


def drift_of(
    renderer: Rerenders,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any],
    token_ids: Sequence[int],
) -> Drift | None:
    """None when they are equal. `messages` end with an answer, and `token_ids` [T], a row, with that answer's sample.

    Raises RenderError: the template cannot write this conversation. ValueError: no answer is last.
    """
    if not messages or messages[-1]["role"] != "assistant":
        raise ValueError(f"drift is taken of a conversation that ends with an answer, got {len(messages)} messages")
    recorded = list(token_ids[:-1] if token_ids and token_ids[-1] in renderer.end_ids else token_ids)
    fresh = renderer.finished(messages, tools, template_kwargs)
    if recorded == fresh:
        return None
    pairs = zip(recorded, fresh, strict=False)
    shorter = min(len(recorded), len(fresh))
    common = next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), shorter)
    return Drift(len(recorded), len(fresh), common)
