"""Which prompts an engine has seen lately, so that a prompt that begins alike can meet its prefix cache. Pure.

It is a guess at the engine's cache, never an authority: a wrong one costs prefill time and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 64
"""Token ids that are compared as one. A few of an engine's own cache blocks (16 ids in vLLM)."""

MAX_CHAIN = 256
"""Blocks of one prompt that are looked at, 16,384 ids: bounds what routing a very long prompt costs."""

MAX_BLOCKS = 16_384
"""Blocks remembered per engine, about a million ids: the order of a KV cache, and some megabytes here."""


def prefix_chain(prompt_ids: Sequence[int]) -> list[int]:
    """One hash per whole block, each over all ids up to its end: equal hashes mean equal beginnings."""
    chain: list[int] = []
    link = 0
    for start in range(0, min(len(prompt_ids) - BLOCK + 1, MAX_CHAIN * BLOCK), BLOCK):
        link = hash((link, *prompt_ids[start : start + BLOCK]))
        chain.append(link)
    return chain


class SeenPrefixes:
    """Of one engine, the longest unused forgotten first."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._links: dict[int, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._links)

    def add(self, chain: Sequence[int]) -> None:
        """The end goes in first, so it is forgotten first: a beginning without its end is still of use."""
        for link in reversed(chain):
            self._links.pop(link, None)
            self._links[link] = None
        while len(self._links) > self._max_blocks:
            del self._links[next(iter(self._links))]

    def longest(self, chain: Sequence[int]) -> int:
        """Blocks at the beginning of `chain` that were seen."""
        return next((index for index, link in enumerate(chain) if link not in self._links), len(chain))

    def clear(self) -> None:
        self._links.clear()
