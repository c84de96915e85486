"""Ray actors as the loop's ports: what a call costs, how it fails, and how it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.cluster.carriers import Carrier
from agentrl.errors import AgentRLError, TrainerError, TrainerLost
from agentrl.train.ports import StepResult
from agentrl.types import Batch, TrainRow, WeightGroup

ALIVE_TIMEOUT_S = 60.0  # for idle ranks to answer, on a busy machine
DEATH_SEEN_S = 5.0  # after a rank's failure, for another one's death to be told, which may be why


class RayRanks:
    """All trainer ranks as one. Collectives need every rank, so every rank is called."""

    def __init__(self, ranks: Sequence[Any], *, timeout_s: float, death_seen_s: float = DEATH_SEEN_S) -> None:
        self._ranks = ranks
        self._timeout_s, self._death_seen_s = timeout_s, death_seen_s

    async def setup(self) -> None:
        port = await self._first("bind", [self._ranks[0].call.remote("bind")])
        await self.all_ranks("setup", port)

    async def export(self, directory: Path, version: int) -> None:
        await self.all_ranks("export", str(directory.resolve()), version)

    async def save(self, directory: Path, version: int) -> None:
        await self.all_ranks("save", str(directory.resolve()), version)

    async def load(self, directory: Path) -> int:
        return int(await self.all_ranks("load", str(directory.resolve())))

    async def all_ranks(self, method: str, *args: object) -> Any:
        """The answer of the first rank."""
        return await self._first(method, [rank.call.remote(method, *args) for rank in self._ranks])

    async def alive(self) -> None:
        """Returns when every rank has answered; one that is busy answers later. Raises TrainerLost."""
        await self._first("alive", [rank.alive.remote() for rank in self._ranks], timeout_s=ALIVE_TIMEOUT_S)

    async def _first(self, method: str, calls: Sequence[Any], *, timeout_s: float | None = None) -> Any:
        """The answer of the first of the calls.

        Raises TrainerLost when a rank died, or when they do not end in time; else TrainerError naming one that failed,
        and the others are not waited for: without it, their collective never ends.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        answers = [asyncio.ensure_future(remote(call)) for call in calls]
        try:
            _, waiting = await asyncio.wait(answers, timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
            errors = _errors(answers)
            if not errors and not waiting:
                return answers[0].result()
            if not errors:
                limit = f"{limit_s:g} s" if timeout_s else f"loop.step_timeout_s = {limit_s:g} s"
                raise TrainerLost(
                    f"trainer {method} did not end within {limit}; a rank hangs, as logs/trainer-*.log may tell, or it "
                    "takes longer than it may"
                )
            if waiting and not any(map(_on_purpose, errors.values())):  # what failed may only have lost another one
                await asyncio.wait(waiting, timeout=self._death_seen_s, return_when=asyncio.FIRST_EXCEPTION)
                errors |= _errors(answers)
        finally:
            for answer in answers:
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
        for rank, error in errors.items():
            if died(error):
                raise TrainerLost(f"trainer rank {rank} died in {method}: {cause(error)}") from error
        rank, error = next(iter(errors.items()))
        raise TrainerError(f"trainer rank {rank} failed in {method}: {cause(error)}") from error


class RayTrainer(RayRanks):
    """The ranks as one `agentrl.train.ports.Trainer`."""

    life = 0

    def __init__(
        self, ranks: Sequence[Any], *, carrier: Carrier, timeout_s: float, death_seen_s: float = DEATH_SEEN_S
    ) -> None:
        super().__init__(ranks, timeout_s=timeout_s, death_seen_s=death_seen_s)
        self.carrier = carrier

    async def step(self, batch: Batch) -> StepResult:
        metrics = msgspec.to_builtins(await self.all_ranks("step", batch))
        untrained = frozenset(metrics.pop("untrained_sessions", ()))
        return StepResult({name: float(value) for name, value in metrics.items()}, untrained)

    async def num_weight_groups(self, *, changed_only: bool) -> int:
        return len(await self.all_ranks("weight_plan", changed_only))

    async def write_weight_group(self, version: int, index: int, *, changed_only: bool) -> WeightGroup:
        return await self.carrier.bring(self, version, index, changed_only=changed_only)

    async def discard_weight_group(self, group: WeightGroup) -> None:
        await self.carrier.discard(group)

    async def connect(self, transfer: str, urls: Sequence[str], key: str | None = None) -> None:
        """Ready to send to these engines directly, by NCCL or CUDA IPC; `key` opens them. Raises TrainerError."""
        await self.all_ranks("connect_engines", transfer, list(urls), key)

    async def send_weights(self, *, changed_only: bool) -> dict[str, float]:
        spent: dict[str, float] = await self.all_ranks("send_weights", changed_only)
        return spent

    async def all_ranks_in_two(self, method: str, *args: object) -> tuple[Any, Any]:
        """The first part of the first rank's answer, and a reference to the second, which stays where it is."""
        first, second = self._ranks[0].call.options(num_returns=2).remote(method, *args)
        others = [rank.call.remote(method, *args) for rank in self._ranks[1:]]
        return await self._first(method, [first, *others]), second


class RaySupervisedTrainer(RayRanks):
    """The ranks as one `agentrl.train.supervised.loop.SupervisedTrainer`."""

    async def step(self, batch: Batch) -> dict[str, float]:
        metrics: dict[str, float] = await self.all_ranks("step", batch)
        return metrics

    async def evaluate(self, batch: Batch) -> dict[str, float]:
        metrics: dict[str, float] = await self.all_ranks("evaluate", batch)
        return metrics

    async def reference(self, rows: list[TrainRow]) -> list[list[float]]:
        logprobs: list[list[float]] = await self.all_ranks("reference", rows)
        return logprobs


def _errors(answers: Sequence[asyncio.Future[Any]]) -> dict[int, BaseException]:
    """By rank, of the calls that have failed."""
    ended = {rank: answer for rank, answer in enumerate(answers) if answer.done() and not answer.cancelled()}
    return {rank: error for rank, answer in ended.items() if (error := answer.exception()) is not None}


def died(error: BaseException) -> bool:
    """Whether Ray says that the actor is gone. By name: Ray is imported by those who start it."""
    return any(kind.__name__ == "RayActorError" for kind in type(error).__mro__)


def _on_purpose(error: BaseException) -> bool:
    return isinstance(error, AgentRLError) or died(error)


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
