"""Builders of trajectories that keep every invariant, for tests of whatever stores, batches or audits them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from agentrl.digest import digest_of
from agentrl.types import Call, Mode, Row, Sampling, SwapRecord, Task, Trajectory, VersionSpan

LATEST = -1
"""As `after`: the call made before, or no call when there is none."""


def task(task_id: str = "t0") -> Task:
    return Task(id=task_id, env_id="calculator", seed=7, options={"digits": 2})


def boot(engine_id: str = "engine-0", version: int = 0, *, at: float = 0.0) -> SwapRecord:
    return SwapRecord(engine_id=engine_id, version=version, mode="boot", started_at=at, finished_at=at + 1)


class TrajectoryBuilder:
    """One session, call by call. Call i runs in the seconds [100 + i, 100.5 + i)."""

    def __init__(
        self, session_id: str = "s0", *, group_id: str | None = "g0", mode: Mode = "train", seed: int = 0
    ) -> None:
        self._random = random.Random(f"{session_id}/{seed}")
        self._calls: list[Call] = []
        self._session_id, self._group_id, self._mode = session_id, group_id, mode

    def call(
        self,
        new_ids: Sequence[int],
        sampled: int | Sequence[int],
        *,
        after: int | None = LATEST,
        versions: Sequence[tuple[int, int]] | None = None,
        engine_id: str = "engine-0",
        untrainable: str | None = None,
        temperature: float = 1.0,
    ) -> TrajectoryBuilder:
        """The prompt is the tokens of call `after` and then `new_ids`; `versions` are (version, number of tokens)."""
        index = len(self._calls)
        if after == LATEST:
            after = index - 1 if index else None
        before = [] if after is None else self._calls[after].prompt_token_ids + self._calls[after].token_ids
        prompt = [*before, *new_ids]
        sample = [self._random.randrange(3, 350) for _ in range(sampled)] if isinstance(sampled, int) else list(sampled)
        self._calls.append(
            Call(
                call_id=f"{self._session_id}-{index}",
                prompt_token_ids=prompt,
                prompt_digest=digest_of(prompt),
                token_ids=sample,
                logprobs=[-float(np.float32(self._random.expovariate(2.0))) for _ in sample],
                versions=_spans(versions or [(0, len(sample))]),
                finish_reason="stop",
                engine_id=engine_id,
                sampling=Sampling(temperature=temperature, max_tokens=64),
                message={"role": "assistant", "content": f"turn {index}"},
                parent=after,
                untrainable=untrainable,
                started_at=100.0 + index,
                ended_at=100.5 + index,
            )
        )
        return self

    def build(self, *, reward: float | None = 1.0, finished_at: float = 1000.0) -> Trajectory:
        dropped: dict[str, int] = {}
        for call in self._calls:
            if call.untrainable:
                dropped[call.untrainable] = dropped.get(call.untrainable, 0) + len(call.token_ids)
        return Trajectory(
            session_id=self._session_id,
            task=task(),
            mode=self._mode,
            stop_reason="done",
            reward=reward,
            components={"right": reward},
            calls=self._calls,
            rows=self._rows(),
            dropped=dropped,
            metadata={} if self._group_id is None else {"group_id": self._group_id, "index": 0},
            created_at=99.0,
            finished_at=finished_at,
        )

    def _rows(self) -> list[Row]:
        """One row per branch; a sample that branches share is trained in the first of them."""
        parents = {call.parent for call in self._calls}
        trained: set[int] = set()
        rows = []
        for leaf in (index for index in range(len(self._calls)) if index not in parents):
            path = self._path(leaf)
            while path and self._calls[path[-1]].untrainable:
                path.pop()
            mine = [index for index in path if index not in trained and not self._calls[index].untrainable]
            if mine:
                trained.update(mine)
                rows.append(self._row(self._calls[path[-1]], [self._calls[index] for index in mine]))
        return rows

    def _path(self, leaf: int) -> list[int]:
        path = [leaf]
        while (parent := self._calls[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    def _row(self, end: Call, trained: Sequence[Call]) -> Row:
        ids = [*end.prompt_token_ids, *end.token_ids]
        row = Row(token_ids=ids, loss_mask=[0] * len(ids), logprobs=[None] * len(ids), versions=[])
        for call in trained:
            start, stop = len(call.prompt_token_ids), len(call.prompt_token_ids) + len(call.token_ids)
            row.loss_mask[start:stop] = [1] * (stop - start)
            row.logprobs[start:stop] = call.logprobs or []
            row.versions += [VersionSpan(s.version, start + s.start, start + s.end) for s in call.versions]
        return row


def _spans(versions: Sequence[tuple[int, int]]) -> list[VersionSpan]:
    spans, start = [], 0
    for version, count in versions:
        spans.append(VersionSpan(version, start, start + count))
        start += count
    return spans


def two_turns(session_id: str = "s0", **options: object) -> TrajectoryBuilder:
    """31 prompt tokens, 20 sampled, 9 of a tool's answer, 12 sampled."""
    return TrajectoryBuilder(session_id, **options).call(range(10, 41), 20).call(range(50, 59), 12)  # type: ignore[arg-type]


def branching(session_id: str = "s0") -> TrajectoryBuilder:
    """Call 1 and call 2 both extend call 0, call 3 starts afresh: three rows, the first also trains call 0."""
    builder = TrajectoryBuilder(session_id).call(range(10, 20), 5).call([60, 61], 4, after=0)
    return builder.call([70], 6, after=0, versions=[(0, 2), (1, 4)]).call([90, 91, 92], 3, after=None)
