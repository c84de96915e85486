"""In-memory twins of the loop's ports: rollouts, trainer, engines and scorer that a test can hold and let go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.digest import digest_of
from agentrl.store.base import TrajectoryStore
from agentrl.types import (
    Batch,
    Call,
    Episode,
    Group,
    Mode,
    Row,
    Sampling,
    StopReason,
    SwapRecord,
    Task,
    Trajectory,
    VersionSpan,
    WeightGroup,
)


def finished_trajectory(
    session_id: str, task: Task, *, group_id: str, mode: Mode, reward: float | None, version: int
) -> Trajectory:
    """Two context tokens and three sampled ones, all of one version."""
    prompt, sampled, logprobs = [1, 2], [3, 4, 5], [-0.1, -0.2, -0.3]
    call = Call(
        call_id=f"{session_id}-c0",
        prompt_token_ids=prompt,
        prompt_digest=digest_of(prompt),
        token_ids=sampled,
        logprobs=logprobs,
        versions=[VersionSpan(version, 0, 3)],
        finish_reason="stop",
        engine_id="engine-0",
        sampling=Sampling(),
        message={"role": "assistant", "content": "x"},
    )
    row = Row(
        token_ids=prompt + sampled,
        loss_mask=[0, 0, 1, 1, 1],
        logprobs=[None, None, *logprobs],
        versions=[VersionSpan(version, 2, 5)],
    )
    return Trajectory(
        session_id=session_id,
        task=task,
        mode=mode,
        stop_reason="done",
        reward=reward,
        calls=[call],
        rows=[row],
        metadata={"group_id": group_id},
    )


class TwinRollouts:
    """Every episode samples under the version that the engines serve now. `hold(task)` may make a group wait."""

    def __init__(
        self,
        store: TrajectoryStore,
        engines: TwinEngines,
        *,
        reward: Callable[[Task, int], float | None] = lambda task, index: float(index % 2),
        hold: Callable[[Task], asyncio.Event | None] = lambda task: None,
        error: str | None = None,
    ) -> None:
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.finished: asyncio.Queue[str] = asyncio.Queue()
        self._store = store
        self._engines = engines
        self._reward = reward
        self._hold = hold
        self._error = error

    async def run_group(self, group_id: str, task: Task, *, size: int, version: int, mode: Mode) -> Group:
        self.started.append(group_id)
        born = self._engines.version
        try:
            if (gate := self._hold(task)) is not None:
                await gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(group_id)
            raise
        group = Group(group_id=group_id, task=task, admitted_at_version=version)
        for index in range(size):
            session_id = f"{group_id}-{index}"
            reward = self._reward(task, index)
            self._store.save(
                finished_trajectory(session_id, task, group_id=group_id, mode=mode, reward=reward, version=born)
            )
            reason = StopReason.ENV_ERROR if reward is None else StopReason.DONE
            group.episodes.append(
                Episode(session_id=session_id, task=task, stop_reason=reason, reward=reward, error=self._error)
            )
        self.finished.put_nowait(group_id)
        return group


class TwinTrainer:
    """Remembers its batches. `on_step` may look around while a step is going on."""

    def __init__(
        self,
        directory: Path,
        *,
        on_step: Callable[[Batch], object] | None = None,
        groups: int = 2,
        skipped_steps: frozenset[int] = frozenset(),
    ) -> None:
        self._skipped_steps = skipped_steps
        self.batches: list[Batch] = []
        self.exports: list[tuple[str, int]] = []
        self._directory = directory
        self._on_step = on_step
        self._groups = groups

    async def step(self, batch: Batch) -> dict[str, float]:
        self.batches.append(batch)
        waiting = self._on_step(batch) if self._on_step else None
        if waiting is not None:
            await waiting  # type: ignore[misc]
        return {"loss": 0.0, "skipped": float(batch.version + 1 in self._skipped_steps)}

    async def num_weight_groups(self) -> int:
        return self._groups

    async def write_weight_group(self, version: int, index: int) -> WeightGroup:
        path = self._directory / f"v{version}-{index}"
        path.write_bytes(b"weights")
        return WeightGroup(
            version=version, index=index, count=self._groups, path=str(path), digest="", names=("w",), num_bytes=7
        )

    async def export(self, directory: Path, version: int) -> None:
        self.exports.append((directory.name, version))


class TwinSwap:
    def __init__(self) -> None:
        self.loaded: list[WeightGroup] = []
        self.seconds: dict[str, float] = {"pause": 0.0}

    async def load(self, group: WeightGroup) -> None:
        assert Path(group.path).exists(), "the engine reads the file before the publisher deletes it"
        self.loaded.append(group)


class TwinEngines:
    """One engine that takes every version, unless told to refuse."""

    def __init__(self, store: TrajectoryStore) -> None:
        self.version = 0
        self.swaps: list[TwinSwap] = []
        self._store = store

    @asynccontextmanager
    async def swap(self, version: int) -> AsyncIterator[TwinSwap]:
        swap = TwinSwap()
        yield swap
        self.version = version
        self.swaps.append(swap)
        self._store.record_swap(
            SwapRecord(engine_id="engine-0", version=version, mode="recompute", started_at=0.0, finished_at=1.0)
        )


class TwinScorer:
    async def score(self, group: Group) -> None:
        return None
