"""Which rank passes which rows together, and one pass over all rows whose answers every rank gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from agentrl.types import TrainRow
from agentrl_trainers import packing
from agentrl_trainers.collate import MicroBatch, collate
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.process_group import Split, split
from agentrl_trainers.step_tokens import StepTokens


@dataclass(frozen=True)
class StepLayout:
    """How this rank lays rows out; equal on all ranks but for the rank."""

    config: TrainerConfig
    hidden_size: int
    device: torch.device

    @property
    def split(self) -> Split:
        """How the rows are shared out; ranks that share matrices, or the tokens of a row, pass the same rows."""
        tokens, matrices = self.config.sequence_parallel, self.config.tensor_parallel
        return split(tokens) if tokens > 1 else split(matrices, share_tokens=False)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over this rank's rows become, in place, sums over all rows. Collective."""
        dist.all_reduce(values, group=self.split.across)
        return values

    def plan(self, rows: Sequence[TrainRow]) -> packing.MicroBatches:
        """This rank's micro-batches: indices into `rows`. Every rank has equally many."""
        return self.plan_items([len(row.token_ids) for row in rows])

    def plan_items(self, lengths: Sequence[int], *, rows_each: int = 1) -> packing.MicroBatches:
        """The same for items of several rows that stay together: indices into `lengths`, the tokens of each item."""
        split = self.split
        plans = packing.plan_step(
            lengths,
            ranks=split.count,
            hidden_size=self.hidden_size,
            group=lambda share: self.group(share, lengths, rows_each),
        )
        return plans[split.index]

    def group(self, items: Sequence[int], lengths: Sequence[int], rows_each: int = 1) -> packing.MicroBatches:
        """`items` in micro-batches, all for one rank."""
        if self.config.packing:
            return packing.pack(items, lengths, self.config.micro_batch_tokens)
        return packing.cut(items, lengths, max(1, self.config.micro_batch_rows // rows_each))

    def micro_batches(self, tokens: StepTokens, part: Sequence[int]) -> list[MicroBatch]:
        """This rank's share of the rows `part` of the step."""
        plan = self.plan([tokens.rows[index] for index in part])
        return [self.collate(tokens, [part[index] for index in indices]) for indices in plan]

    def collate(self, tokens: StepTokens, indices: Sequence[int]) -> MicroBatch:
        rows = [tokens.rows[index] for index in indices]
        known = tokens.of_rows(indices) if tokens.vectors else None
        return collate(rows, packed=self.config.packing, known=known).to(self.device)

    def of_all_tokens(self, tokens: StepTokens, values_of: Callable[[MicroBatch], torch.Tensor]) -> torch.Tensor:
        """`[A]`, on the CPU and the same on every rank: `values_of` (micro-batch -> `[N]`) at every trained token.

        Without gradient. All ranks call it together, and each passes its share of the rows.
        """
        found_A = torch.zeros(tokens.num_tokens, device=self.device)
        for indices in self.plan(tokens.rows):
            with torch.no_grad():
                values_N = values_of(self.collate(tokens, indices)).float()
            spans = [tokens.spans[index] for index in indices]
            for span, part in zip(spans, values_N.split([span.stop - span.start for span in spans]), strict=True):
                found_A[span] = part
        return self.total(found_A).cpu()
