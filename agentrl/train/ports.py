"""What the loop needs from the outside. Ray actors stand behind these in a run, twins in tests."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from agentrl.types import Batch, Group, Mode, Task, WeightGroup


class Rollouts(Protocol):
    """Runs episodes against the gateway. Failures of episodes are data in the group, never exceptions."""

    async def run_group(self, group_id: str, task: Task, *, size: int, version: int, mode: Mode) -> Group: ...


class Trainer(Protocol):
    """Every rank of the policy, as one. Raises TrainerError."""

    async def step(self, batch: Batch) -> dict[str, float]: ...

    async def num_weight_groups(self) -> int: ...

    async def write_weight_group(self, version: int, index: int) -> WeightGroup: ...

    async def export(self, directory: Path, version: int) -> None: ...


class Swap(Protocol):
    """One version on its way into every engine."""

    async def load(self, group: WeightGroup) -> None: ...

    @property
    def seconds(self) -> dict[str, float]:
        """After the context closed: the slowest engine's time per part."""
        ...


class Engines(Protocol):
    """All engines behind the gateway, for a weight swap. Raises SwapError when none took the version.

    The swap log is written (`TrajectoryStore.record_swap`) before the gateway hears that an engine has the version.
    """

    def swap(self, version: int) -> AbstractAsyncContextManager[Swap]: ...


class Scorer(Protocol):
    """Adds the rewards of services to a finished group, durably. A reward that cannot be had stays None."""

    async def score(self, group: Group) -> None: ...
