"""In-memory twins of the loop's ports: rollouts, trainer, engines and scorer that a test can hold and let go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.digest import digest_of
from agentrl.errors import SwapError
from agentrl.observe.step_trace import EvaluationTrace, StepTrace
from agentrl.store.base import TrajectoryStore
from agentrl.train.ports import StepResult
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


def in_one_thread() -> None:
    """What the running loop gives to threads is done in order: of groups played at once, none overtakes another."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


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
        suffix: str = "",
    ) -> None:
        """suffix: of the ids of its sessions."""
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.had: dict[str, dict[int, Episode]] = {}  # of each group, the attempts that were not to be played
        self.finished: asyncio.Queue[str] = asyncio.Queue()
        self._store = store
        self._engines = engines
        self._reward = reward
        self._hold = hold
        self._error = error
        self._suffix = suffix

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
        self.had[group_id] = dict(have or {})
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
            if have and index in have:
                group.episodes.append(have[index])
                continue
            session_id = f"{group_id}-{index}{self._suffix}"
            reward = self._reward(task, index)
            found = finished_trajectory(session_id, task, group_id=group_id, mode=mode, reward=reward, version=born)
            found.metadata["index"], found.components = index, {"env": reward}
            self._store.save(found)
            reason = StopReason.ENV_ERROR if reward is None else StopReason.DONE
            group.episodes.append(
                Episode(session_id=session_id, task=task, stop_reason=reason, reward=reward, error=self._error)
            )
        self.finished.put_nowait(group_id)
        return group


class TwinTrainer:
    """Remembers its batches. `on_step` may look around while a step is going on.

    Nothing is trained in `skipped_steps` and while the critic warms up, and in `half_skipped` only the first row.
    """

    def __init__(
        self,
        directory: Path,
        *,
        on_step: Callable[[Batch], object] | None = None,
        groups: int = 2,
        skipped_steps: frozenset[int] = frozenset(),
        half_skipped: frozenset[int] = frozenset(),
        warmup_steps: int = 0,
    ) -> None:
        self._skipped_steps, self._half_skipped, self._warmup_steps = skipped_steps, half_skipped, warmup_steps
        self.life = 0
        self.batches: list[Batch] = []
        self.exports: list[int] = []
        self.changed_only: list[bool] = []  # of each version that was published
        self.saves: list[int] = []
        self._directory = directory
        self._on_step = on_step
        self._groups = groups

    async def step(self, batch: Batch) -> StepResult:
        self.batches.append(batch)
        waiting = self._on_step(batch) if self._on_step else None
        if waiting is not None:
            await waiting  # type: ignore[misc]
        made = batch.version + 1
        skipped, warmup = made in self._skipped_steps, made <= self._warmup_steps
        untrained = batch.rows if skipped or warmup else batch.rows[1:] if made in self._half_skipped else []
        metrics = {"loss": 0.0, "skipped": float(skipped)} | ({"critic_warmup": 1.0} if warmup else {})
        return StepResult(metrics, frozenset(row.session_id for row in untrained))

    async def num_weight_groups(self, *, changed_only: bool) -> int:
        self.changed_only.append(changed_only)
        return self._groups

    async def write_weight_group(self, version: int, index: int, *, changed_only: bool) -> WeightGroup:
        path = self._directory / f"v{version}-{index}"
        path.write_bytes(b"weights")
        return WeightGroup(
            version=version,
            index=index,
            count=self._groups,
            path=str(path),
            digest="",
            names=("w",),
            num_bytes=7,
            seconds={"gather": 0.5, "write": 0.25},
        )

    async def discard_weight_group(self, group: WeightGroup) -> None:
        Path(group.path).unlink()

    async def send_weights(self, *, changed_only: bool) -> dict[str, float]:
        self.changed_only.append(changed_only)
        return {"send": 2.0, "bytes": 14.0}

    async def export(self, directory: Path, version: int) -> None:
        self.exports.append(version)
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(b"weights")

    async def save(self, directory: Path, version: int) -> None:
        self.saves.append(version)
        directory.mkdir()
        (directory / "state.json").write_text(str(version))

    async def load(self, directory: Path) -> int:
        return int((directory / "state.json").read_text())


class TwinSwap:
    def __init__(self, version: int = 0, *, fed: bool = False) -> None:
        self.version, self.fed = version, fed
        self.loaded: list[WeightGroup] = []
        self.seconds: dict[str, float] = {"pause": 0.0}
        self.failures: dict[str, Exception] = {}

    async def load(self, group: WeightGroup) -> None:
        assert Path(group.path).exists(), "the engine reads the file before the publisher deletes it"
        self.loaded.append(group)


class TwinEngines:
    """One engine that takes every version, unless told to refuse."""

    def __init__(self, store: TrajectoryStore) -> None:
        self.version = 0
        self.swaps: list[TwinSwap] = []
        self.missing: dict[str, Exception] = {}  # of the next swaps
        self.failing = 0  # of the next swaps, how many no engine takes
        self.behind = 0  # engines that came back
        self.fed = False  # whether all were sent every tensor
        self._store = store

    async def urls(self) -> list[str]:
        return ["http://engine-0"]

    @asynccontextmanager
    async def catch_up(self, *, all_together: bool = False) -> AsyncIterator[TwinSwap | None]:
        swap = TwinSwap(self.version) if self.behind else None
        yield swap
        if swap is not None:
            self.swaps.append(swap)
        self.behind = 0

    @asynccontextmanager
    async def swap(self, version: int) -> AsyncIterator[TwinSwap]:
        swap = TwinSwap(version, fed=self.fed)
        self.fed = False
        yield swap
        if self.failing:
            self.failing -= 1
            raise SwapError(f"no engine took version {version}")
        swap.failures = self.missing
        self.fed = not self.missing
        self.version = version
        self.swaps.append(swap)
        self._store.record_swap(
            SwapRecord(engine_id="engine-0", version=version, mode="recompute", started_at=0.0, finished_at=1.0)
        )


class KeptTraces:
    """What would be written."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.steps: list[StepTrace] = []
        self.evaluations: list[EvaluationTrace] = []

    def stepped(self, step: StepTrace) -> None:
        self.steps.append(step)

    def evaluated(self, evaluation: EvaluationTrace) -> None:
        self.evaluations.append(evaluation)

    def close(self) -> None:
        pass


class TwinScorer:
    def stats(self) -> dict[str, dict[str, float]]:
        return {}

    async def score(self, group: Group, *, useful: Callable[[], bool] = lambda: True) -> None:
        return None
