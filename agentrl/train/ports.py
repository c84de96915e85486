"""What the loop needs from the outside. Ray actors stand behind these in a run, twins in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentrl.types import Batch, Episode, Group, Mode, Task, WeightGroup


class Rollouts(Protocol):
    """Runs episodes against the gateway. Failures of episodes are data in the group, never exceptions."""

    async def run_group(
        self,
        group_id: str,
        task: Task,
        *,
        size: int,
        version: int,
        mode: Mode,
        have: Mapping[int, Episode] | None = None,
    ) -> Group:
        """`have`: attempts by their index that were finished before; the others are played."""
        ...


class Saveable(Protocol):
    """Every rank of a trainer, as one."""

    async def export(self, directory: Path, version: int) -> None:
        """The weights as a Hugging Face directory."""
        ...

    async def save(self, directory: Path, version: int) -> None:
        """All that training needs to go on from `version`, into `directory`, which is nobody else's."""
        ...

    async def load(self, directory: Path) -> int:
        """Go on where `directory` was saved; the version. Ranks may be other ones. Raises CheckpointError."""
        ...


@dataclass(frozen=True)
class StepResult:
    """What a trainer made of a batch."""

    metrics: dict[str, float]
    untrained_sessions: frozenset[str] = frozenset()  # of the batch, those whose rows gave the policy no gradient


class Stepper(Protocol):
    """Makes one version of the weights from the one before."""

    async def step(self, batch: Batch) -> StepResult:
        """Trains from `batch.version`, which says where the schedule stands: versions without a batch may lie between.

        `metrics["critic_warmup"]` is 1 where the critic was trained alone.
        """
        ...


class Trainer(Saveable, Stepper, Protocol):
    """Every rank of the policy, as one. Raises TrainerError."""

    life: int
    """Counts how often the ranks were started anew. What ranks of one life sent, those of another may not leave out."""

    async def num_weight_groups(self, *, changed_only: bool) -> int:
        """changed_only: without the tensors that training leaves as they are."""
        ...

    async def write_weight_group(self, version: int, index: int, *, changed_only: bool) -> WeightGroup:
        """Its file is where every engine reads it, until it is discarded."""
        ...

    async def discard_weight_group(self, group: WeightGroup) -> None: ...

    async def send_weights(self, *, changed_only: bool) -> dict[str, float]:
        """To the engines that it was connected with, which are in a swap; what it took. Not every trainer can."""
        ...


class Swap(Protocol):
    """One version on its way into engines."""

    version: int

    @property
    def fed(self) -> bool:
        """Whether each engine of it was sent every tensor before, and still has it."""
        ...

    async def load(self, group: WeightGroup) -> None: ...

    @property
    def seconds(self) -> dict[str, float]:
        """After the context closed: the slowest engine's time per part, then each engine's."""
        ...

    @property
    def failures(self) -> Mapping[str, Exception]:
        """By id, the engines that did not take the version."""
        ...


class Engines(Protocol):
    """All engines behind the gateway, for a weight swap. Raises SwapError when none took the version.

    The swap log is written (`TrajectoryStore.record_swap`) before the gateway hears that an engine has the version.
    """

    async def urls(self) -> list[str]:
        """Of the engines that a swap would reach. Waits, in bounds, while there is none."""
        ...

    def swap(self, version: int) -> AbstractAsyncContextManager[Swap]:
        """Waits, in bounds, while no engine is up."""
        ...

    def catch_up(self, *, all_together: bool = False) -> AbstractAsyncContextManager[Swap | None]:
        """A swap to the newest version for the engines that came back without it; None when there is none.

        all_together: with the engines that have it.
        """
        ...


class Scorer(Protocol):
    """Adds the rewards of services to a finished group, durably. A reward that cannot be had stays None."""

    async def score(self, group: Group, *, useful: Callable[[], bool] = ...) -> None:
        """`useful` says whether the group can still be trained: a service that is out is not waited for beyond that."""
        ...

    def stats(self) -> dict[str, dict[str, float]]:
        """What each part of the reward has done and cost since the start, by its name."""
        ...
