"""Which sequences go through the model together. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def buckets(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Indices into `lengths`, neighbours in length together: a batch has at most `max_tokens`, padding included.

    A sequence that is longer alone is a batch of its own.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        # By length, so the newest is the longest: every other one is padded to it.
        if batches and (len(batches[-1]) + 1) * lengths[index] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
