"""Which items each step trains on. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def steps_of(items: int, *, batch_size: int, epochs: int, at_most: int | None) -> int:
    """Steps of a run over so many items."""
    whole = epochs * -(-items // batch_size)
    return whole if at_most is None else min(whole, at_most)


def batches(items: Sequence[T], *, batch_size: int, epochs: int, seed: int) -> Iterator[tuple[float, list[T]]]:
    """Batches with the passes done after each: every pass has all items once, in an order that `seed` and it decide."""
    for epoch in range(epochs):
        order = list(range(len(items)))
        random.Random(f"{seed}-{epoch}").shuffle(order)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            yield epoch + (start + len(chosen)) / len(order), [items[index] for index in chosen]
