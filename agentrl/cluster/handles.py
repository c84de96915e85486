"""Ray actors as the loop's ports: what a call costs, how it fails, and how it is cancelled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import AgentRLError, RunError, TrainerError
from agentrl.types import Batch, Group, Mode, Task, WeightGroup


class RayTrainer:
    """All trainer ranks as one `agentrl.train.ports.Trainer`. Collectives need every rank, so every rank is called."""

    def __init__(self, ranks: Sequence[Any], *, shared_memory: Path, timeout_s: float) -> None:
        self._ranks = ranks
        self._shared_memory = shared_memory
        self._timeout_s = timeout_s

    async def setup(self) -> None:
        port = await self._one(0, "bind")
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

    async def _one(self, rank: int, method: str) -> Any:
        async with asyncio.timeout(self._timeout_s):
            return await remote(self._ranks[rank].call.remote(method))

    async def _all(self, method: str, *args: object) -> Any:
        """Calls every rank; the answer is rank 0's. The first failing rank is named."""
        calls = [rank.call.remote(method, *args) for rank in self._ranks]
        try:
            async with asyncio.timeout(self._timeout_s):
                answers = await asyncio.gather(*(remote(call) for call in calls), return_exceptions=True)
        except TimeoutError:
            raise TrainerError(
                f"trainer {method} did not end within loop.step_timeout_s = {self._timeout_s:g} s; "
                "raise it, or look at logs/trainer-*.log for a rank that hangs"
            ) from None
        for rank, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                raise TrainerError(f"trainer rank {rank} failed in {method}: {cause(answer)}") from answer
        return answers[0]


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
        try:
            async with asyncio.timeout(10.0):
                await remote(call)
        except (TimeoutError, Exception):
            return


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
