"""Numbers that a step finds out about its trained tokens, whichever rank computed them: one vector per kind.

A counts the trained tokens of a step over all its rows, in the order of the rows. Every rank holds the whole vectors:
they are small, and a row may be on another rank in the next pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from agentrl.types import TrainRow


@dataclass
class StepTokens:
    """`vectors` by name, `[A]` float32 each: "advantages", "rewards" and "behaviour" (the logprobs recorded when the
    tokens were sampled) from the batch, and whatever models said."""

    rows: Sequence[TrainRow]
    vectors: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [sum(row.loss_mask) for row in self.rows]
        ends = np.cumsum(counts, dtype=np.int64)
        self.spans = [slice(int(end) - count, int(end)) for end, count in zip(ends, counts, strict=True)]
        self.num_tokens = sum(counts)

    def row_A(self) -> torch.Tensor:
        """`[A]` int64: the row that each trained token is in."""
        counts = torch.tensor([span.stop - span.start for span in self.spans], dtype=torch.long)
        return torch.arange(len(self.rows)).repeat_interleave(counts)

    def of_rows(self, indices: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """The vectors of some rows, `[N]` each: row by row, in the order of `indices`."""
        at = [torch.arange(self.spans[index].start, self.spans[index].stop) for index in indices]
        positions = torch.cat(at) if at else torch.zeros(0, dtype=torch.long)
        return {name: vector[positions] for name, vector in self.vectors.items()}


def batch_tokens(rows: Sequence[TrainRow]) -> StepTokens:
    """With what the batch itself says of its trained tokens."""
    tokens = StepTokens(rows)
    for name in ("advantages", "rewards", "logprobs"):
        values = [np.asarray(getattr(row, name) or [0.0] * len(row.token_ids)) for row in rows]
        masks = [np.asarray(row.loss_mask, dtype=bool) for row in rows]
        trained = [value[mask] for value, mask in zip(values, masks, strict=True)]
        tokens.vectors["behaviour" if name == "logprobs" else name] = torch.from_numpy(np.concatenate(trained)).float()
    return tokens
