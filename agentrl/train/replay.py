"""What a run has to do again after a death, to stand where it stood: a pure plan over what is left on the disk."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from agentrl.errors import CheckpointError


@dataclass(frozen=True)
class Replay:
    """Restore `checkpoint` (None: the initial model), then train `batches` in order; that is `version`."""

    checkpoint: int | None
    version: int

    @property
    def batches(self) -> range:
        return range(self.checkpoint or 0, self.version)


def plan_replay(*, checkpoints: Collection[int], logged: Collection[int], reached: int) -> Replay:
    """The shortest way to the newest version that was made, or was about to be.

    `checkpoints`: the versions that are whole, trainer included. `logged`: the entries of the batch log; that of v says
    that version v was there. `reached`: the highest version that anything else tells of.

    Raises CheckpointError when that version cannot be made again: a checkpoint or an entry was lost.
    """
    checkpoint = max(checkpoints, default=None)
    version = checkpoint or 0
    while version in logged:
        version += 1
    reached = max([reached, *logged])
    if version < reached:
        since = "the initial model" if checkpoint is None else f"checkpoint v{checkpoint}"
        raise CheckpointError(
            f"the run had reached version {reached}, and from {since} only version {version} can be made again: the "
            f"batch of version {version}, or a later checkpoint, is missing or damaged; restore it from a copy"
        )
    return Replay(checkpoint, version)
