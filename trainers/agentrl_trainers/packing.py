"""Which rows go through the model together, and on which rank. Pure: row lengths in, row indices out.

Rows are spread over the ranks by cost (longest first, to the rank with the least work so far), then packed on each
rank under a token budget (first-fit decreasing). Every rank gets the same number of micro-batches, because collectives
inside a forward or backward pass must be entered by all; the missing ones are empty, and an empty one trains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

MicroBatches = list[list[int]]  # each inner list: row indices of one forward pass, [] is a filler


def row_cost(num_tokens: int, hidden_size: int) -> float:
    """Work of one row in units of one token's matrix products.

    A layer does 24 H^2 FLOPs a token in its matrices and 2 T H in causal attention: `T (1 + T / 12H)`. Source:
    Narayanan et al., arXiv:2104.04473, appendix, with the causal half.
    """
    return num_tokens * (1.0 + num_tokens / (12.0 * hidden_size))


def spread(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Row indices of each rank, balanced by `costs` `[rows]`. Deterministic: ties go to the lower index and rank."""
    load = [0.0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for row in sorted(range(len(costs)), key=lambda row: (-costs[row], row)):
        rank = min(range(ranks), key=lambda rank: (load[rank], rank))
        shares[rank].append(row)
        load[rank] += costs[row]
    return shares


def pack(rows: Sequence[int], lengths: Sequence[int], budget: int) -> MicroBatches:
    """First-fit decreasing of `rows` into bins of `budget` tokens; a row above the budget gets a bin of its own."""
    bins: MicroBatches = []
    room: list[int] = []
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        fits = next((index for index, left in enumerate(room) if lengths[row] <= left), None)
        if fits is None:
            bins.append([row])
            room.append(budget - lengths[row])
        else:
            bins[fits].append(row)
            room[fits] -= lengths[row]
    return bins


def cut(rows: Sequence[int], lengths: Sequence[int], rows_each: int) -> MicroBatches:
    """`rows_each` rows of similar length at a time, longest first, so that padding is small."""
    ordered = sorted(rows, key=lambda row: (-lengths[row], row))
    return [ordered[start : start + rows_each] for start in range(0, len(ordered), rows_each)]


def plan_step(
    lengths: Sequence[int], *, ranks: int, hidden_size: int, group: Callable[[Sequence[int]], MicroBatches]
) -> list[MicroBatches]:
    """Micro-batches of each rank, equally many on all: every row in exactly one.

    lengths: `[rows]`, tokens. group: makes one rank's micro-batches out of its row indices (`pack` or `cut`, bound to
    their limits).
    """
    costs = [row_cost(length, hidden_size) for length in lengths]
    plans = [group(share) for share in spread(costs, ranks)]
    most = max(1, *(len(plan) for plan in plans))
    return [plan + [[] for _ in range(most - len(plan))] for plan in plans]
