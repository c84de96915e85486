"""Ray actors as the loop's ports: what a call costs, how it fails, and how it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import AgentRLError, RunError, TrainerError, first_error
from agentrl.types import Batch, Group, Mode, Task, WeightGroup

CANCEL_TIMEOUT_S = 10.0


class RayTrainer:
    """All trainer ranks as one `agentrl.train.ports.Trainer`. Collectives need every rank, so every rank is called."""

    def __init__(self, ranks: Sequence[Any], *, shared_memory: Path, timeout_s: float) -> None:
        self._ranks = ranks
        self._shared_memory = shared_memory
        self._timeout_s = timeout_s

    async def setup(self) -> None:
        port = await self._call("bind", self._ranks[:1])
        await self._all("setup", port)

    async def step(self, batch: Batch) -> dict[str, float]:
        metrics = msgspec.to_builtins(await self._all("step", batch))
        return {name: float(value) for name, value in metrics.items()}

    async def num_weight_groups(self) -> int:
        return len(await self._all("weight_plan"))

    async def write_weight_group(self, version: int, index: int) -> WeightGroup:
        group: WeightGroup = await self._all("write_weights", version, index, str(self._shared_memory))
        return group

    async def export(self, directory: Path, version: int) -> None:
        await self._all("export", str(directory), version)

    async def _all(self, method: str, *args: object) -> Any:
        return await self._call(method, self._ranks, *args)

    async def _call(self, method: str, ranks: Sequence[Any], *args: object) -> Any:
        """The answer of the first of the ranks. The first that fails is named, and the others are not waited for."""
        calls = [rank.call.remote(method, *args) for rank in ranks]
        try:
            async with asyncio.timeout(self._timeout_s), asyncio.TaskGroup() as group:
                answers = [group.create_task(self._of(rank, method, call)) for rank, call in enumerate(calls)]
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        except TimeoutError:
            raise TrainerError(
                f"trainer {method} did not end within loop.step_timeout_s = {self._timeout_s:g} s; "
                "raise it, or look at logs/trainer-*.log for a rank that hangs"
            ) from None
        return answers[0].result()

    async def _of(self, rank: int, method: str, call: Any) -> Any:
        try:
            return await remote(call)
        except Exception as error:
            raise TrainerError(f"trainer rank {rank} failed in {method}: {cause(error)}") from error


class RayRollouts:
    """Rollout workers as one `agentrl.train.ports.Rollouts`; groups go round the workers."""

    def __init__(self, workers: Sequence[Any]) -> None:
        self._workers = itertools.cycle(workers)

    async def run_group(self, group_id: str, task: Task, *, size: int, version: int, mode: Mode) -> Group:
        call = next(self._workers).run_group.remote(group_id, task, size=size, version=version, mode=mode)
        try:
            group: Group = await remote(call)
        except asyncio.CancelledError:
            await self._cancel(call)
            raise
        except Exception as error:
            raise RunError(f"a rollout worker failed on group {group_id}: {cause(error)}") from error
        return group

    async def _cancel(self, call: Any) -> None:
        """Ends the group on its worker and waits, in bounds, until its episodes cleaned up."""
        import ray

        ray.cancel(call)
        with contextlib.suppress(Exception):  # it was cancelled: whatever it says now, nobody needs it
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await remote(call)


async def remote(call: Any) -> Any:
    """The answer of a remote call. An error that the actor raised on purpose arrives as itself."""
    try:
        return await call
    except Exception as error:
        inner = getattr(error, "cause", None)
        if isinstance(inner, AgentRLError):
            raise inner from error
        raise


def cause(error: BaseException) -> str:
    """The remote error in one line, without Ray's traceback around it."""
    inner = getattr(error, "cause", None) or error
    text = str(inner).strip().splitlines()
    return f"{type(inner).__name__}: {text[-1] if text else 'no message'}"
