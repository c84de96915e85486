"""Publishers: one version of the trainer's weights into every engine, and what that took."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from agentrl.errors import SwapError, TrainerError
from agentrl.train.ports import Engines, Stepper, StepResult, Swap, Trainer
from agentrl.types import Batch

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""Times that a version is sent before it counts as one that no engine can take: each time all engines failed, and were
started again since."""


class Publisher(Protocol):
    """Raises SwapError when no engine took the version, TrainerError when the trainer could not give it."""

    async def publish(self, version: int) -> dict[str, float]:
        """What it took: seconds by stage, and `bytes` that left the trainer."""
        ...


class TrainerWeights:
    """Whether the trainer holds the weights of the last published version, or is making others.

    Only in the first case can an engine that came back be brought to that version.
    """

    def __init__(self, *, published: bool = True) -> None:
        """published: engines and trainer start with the same weights; not so where a checkpoint is restored first."""
        self._lock = asyncio.Lock()
        self._published = published

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Around all that changes them."""
        async with self._lock:
            self._published = False
            yield

    @asynccontextmanager
    async def publishing(self) -> AsyncIterator[None]:
        """Around what brings them into all engines."""
        async with self._lock:
            yield
            self._published = True

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[bool]:
        """They do not change inside; whether they are the published ones."""
        async with self._lock:
            yield self._published


class ToldTrainer:
    """A trainer whose steps are told to its `TrainerWeights`."""

    def __init__(self, trainer: Stepper, weights: TrainerWeights) -> None:
        self._trainer = trainer
        self._weights = weights

    async def step(self, batch: Batch) -> StepResult:
        async with self._weights.changing():
            return await self._trainer.step(batch)


class EnginePublisher(ABC):
    """What publishers share: a version that all engines failed is sent again once engines are back.

    All tensors go out to engines that were not sent them before, and again after the trainer's ranks were started anew;
    otherwise those that training leaves as they are stay with the engines. `all_tensors` sends all of them every time,
    to engines that keep none.
    """

    def __init__(
        self,
        *,
        trainer: Trainer,
        engines: Engines,
        all_tensors: bool = False,
        weights: TrainerWeights | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        """`weights` is told by whoever steps the trainer; without one, it is never stepped while engines come back."""
        self._trainer = trainer
        self._engines = engines
        self._all_tensors = all_tensors
        self._weights = weights or TrainerWeights()
        self._attempts = attempts
        self._life = 0  # of the ranks that are sending
        self._sent_by: int | None = None  # the life of the ranks that sent all engines the last version

    async def publish(self, version: int) -> dict[str, float]:
        async with self._weights.publishing():
            for attempt in range(1, self._attempts + 1):
                try:
                    await self._prepare()
                    async with self._engines.swap(version) as swap:
                        self._life = self._trainer.life
                        spent = await self._send(swap)
                except SwapError as error:
                    if attempt == self._attempts:
                        raise
                    logger.error("version %d is sent again: %s", version, error)
                else:
                    self._sent_by = self._life if self._life == self._trainer.life else None
                    return {**swap.seconds, **spent}
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def bring(self) -> None:
        """Brings engines that came back to the newest version.

        Does nothing while a newer one is being made: they take that, with the others. What goes wrong is theirs, or is
        met by the next step.
        """
        async with self._weights.standing() as published:
            if not published:
                return
            try:
                await self._prepare()
                async with self._engines.catch_up(all_together=self._all_together) as swap:
                    if swap is not None:
                        await self._send(swap)
            except (SwapError, TrainerError) as error:
                logger.error("engines that came back were not brought to the newest version: %s", error)

    _all_together = False
    """Whether a swap has to reach all engines at a time."""

    @abstractmethod
    async def _prepare(self) -> None:
        """Before engines are paused."""

    def _changed_only(self, swap: Swap) -> bool:
        return swap.fed and not self._all_tensors and self._sent_by == self._trainer.life

    @abstractmethod
    async def _send(self, swap: Swap) -> dict[str, float]:
        """What it took on the trainer's side."""


class GroupPublisher(EnginePublisher):
    """Streams weight groups through files that engines read, so that peak memory is the model plus one group.

    Stages: gather, write, transfer (between machines); of the slowest engine: pause, load, finish, resume.
    """

    async def _prepare(self) -> None:
        """Files need no preparation."""

    async def _send(self, swap: Swap) -> dict[str, float]:
        spent: Counter[str] = Counter()
        self._life, changed_only = self._trainer.life, self._changed_only(swap)
        index, count = 0, await self._trainer.num_weight_groups(changed_only=changed_only)
        while index < count:
            group = await self._trainer.write_weight_group(swap.version, index, changed_only=changed_only)
            try:
                if index == 0 and self._life != self._trainer.life:  # died since: the others have sent nothing yet
                    self._life, changed_only = self._trainer.life, self._changed_only(swap)
                    count = await self._trainer.num_weight_groups(changed_only=changed_only)
                    continue
                await swap.load(group)
            finally:
                await self._trainer.discard_weight_group(group)
            index += 1
            spent.update(group.seconds)
            spent["bytes"] += group.num_bytes
        return dict(spent)


class DirectPublisher(EnginePublisher):
    """Has the trainer send to the engines itself, GPU to GPU (NCCL, CUDA IPC), while a swap holds them paused.

    Stages: send (gather, transfer and load at once); of the slowest engine: pause, finish, resume.
    """

    _all_together = True

    def __init__(
        self,
        *,
        connect: Callable[[Sequence[str]], Awaitable[None]] | None = None,
        connected: Sequence[str] = (),
        **shared: Any,
    ) -> None:
        """connect: what connects the trainer to engines by their URLs; connected: those that it is connected with."""
        super().__init__(**shared)
        self._connect = connect
        self._connected = list(connected)
        self._connected_anew = False

    async def _prepare(self) -> None:
        """An engine that came back is another one to the trainer, and what was sent before counts for nobody."""
        if self._connect is None:
            return
        urls = await self._engines.urls()
        if urls != self._connected:
            await self._connect(urls)
            self._connected, self._connected_anew = urls, True

    async def _send(self, swap: Swap) -> dict[str, float]:
        spent = await self._trainer.send_weights(changed_only=self._changed_only(swap) and not self._connected_anew)
        self._connected_anew = False
        return spent
