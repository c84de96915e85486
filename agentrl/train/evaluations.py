"""The evaluations of a run: one at a time, each under one version, and beside training.

Where the engines are those of training, the next version waits until the evaluation is done, and all else goes on. On
engines of its own an evaluation holds up nothing: they stay at its version, and take the newest one that is due then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from types import TracebackType

from agentrl.errors import SwapError
from agentrl.observe.recorder import Recorder
from agentrl.observe.step_trace import EpisodeTrace, EvaluationTrace, GroupTrace
from agentrl.observe.traces import NoTraces, Traces
from agentrl.train.checkpoints import Checkpoints
from agentrl.train.config import EvaluationConfig
from agentrl.train.evaluate import Evaluated, EvaluationError, Evaluator, Failure
from agentrl.train.publish import Publisher
from agentrl.train.retention import EVALUATED
from agentrl.types import Group, Trajectory

logger = logging.getLogger(__name__)

NO_TRAJECTORIES: tuple[Trajectory, ...] = ()


class Evaluations:
    """Use as an async context manager around the steps: leaving it waits for the one under way, or ends it when the run
    fails.

    One that fails is counted and named (`Recorder.evaluation_failed`) and ends nothing.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        config: EvaluationConfig,
        recorder: Recorder,
        *,
        own: Publisher | None = None,
        beside: bool = True,
        checkpoints: Checkpoints | None = None,
        traces: Traces | None = None,
        trajectories: Callable[[str], Iterable[Trajectory]] = lambda group_id: NO_TRAJECTORIES,
    ) -> None:
        """own: publishes to the engines of evaluations, where they have some. beside: whether the engines can sample
        while the trainer steps. `checkpoints` are told the result of their version, `traces` its episodes, which
        `trajectories` finds by group.
        """
        self._evaluator = evaluator
        self._config = config
        self._recorder = recorder
        self._own = own
        self._beside = beside or own is not None
        self._checkpoints = checkpoints
        self._traces = traces or NoTraces()
        self._trajectories = trajectories
        self._running: asyncio.Task[None] | None = None
        self._tried: set[int] = set()  # versions that have no result, and get none

    async def __aenter__(self) -> Evaluations:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self.ended()

    @property
    def in_the_way(self) -> bool:
        """Whether the training engines may not take another version now."""
        return self._own is None and self._running is not None

    def due(self, version: int) -> bool:
        """Whether `begin` is to be called for this one, which is published."""
        every, config = self._config.every, self._config
        return bool(every and version and config.tasks and not version % every) and not self._known(version)

    async def begin(self, version: int) -> None:
        """Returns when it is under way; where the engines cannot sample beside training, when it is done.

        The trainer holds this version: engines of its own are given it here. Raises TrainerError when it cannot.
        """
        if self._running is not None and self._running.done():
            await self.ended()
        if self._running is not None:
            why = f"the evaluation before it is not done; raise evaluation.every = {self._config.every}"
            self._failed(version, "busy", why)
            return
        if self._own is not None:
            try:
                await self._own.publish(version)
            except SwapError as error:
                self._failed(version, "engines", str(error))
                return
        self._running = asyncio.create_task(self._run(version, beside=self._beside), name=f"evaluation of {version}")
        if not self._beside:
            await self.ended()

    async def ended(self) -> None:
        """Returns when none is under way; none goes on longer than `evaluation.timeout_s`."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    async def first(self) -> None:
        """Of version 0, before anything else. Raises what it failed of: a run that cannot be evaluated at all ends
        before it has cost anything."""
        if self._config.at_start and self._config.tasks and not self._known(0):
            await self._took_place(await self._evaluator.run(0), beside=False)

    async def last(self, version: int) -> None:
        if self._config.at_end and self._config.tasks and not self._known(version):
            if self._own is not None:
                await self.begin(version)
                await self.ended()
            else:
                await self._run(version, beside=False)

    def _known(self, version: int) -> bool:
        """Also from before the run was taken up again."""
        return version in self._tried or any(record.version == version for record in self._recorder.evaluations)

    async def _run(self, version: int, *, beside: bool) -> None:
        self._tried.add(version)
        try:
            await self._took_place(await self._evaluator.run(version), beside=beside)
        except EvaluationError as error:
            self._failed(version, error.reason, str(error))
        except Exception as error:
            logger.exception("the evaluation of version %d failed", version)
            self._failed(version, "failed", f"{type(error).__name__}: {error}")

    def _failed(self, version: int, reason: Failure, why: str) -> None:
        logger.warning("version %d has no evaluation (%s): %s", version, reason, why)
        self._recorder.evaluation_failed(version, reason)

    async def _took_place(self, evaluated: Evaluated, *, beside: bool) -> None:
        record = evaluated.record
        self._recorder.evaluated(record, beside=beside)
        if self._checkpoints is not None:
            scores = {f"{EVALUATED}success": record.success, f"{EVALUATED}reward": record.reward}
            await asyncio.to_thread(self._checkpoints.add_scores, record.version, scores)
        await asyncio.to_thread(self._tell_traces, evaluated)

    def _tell_traces(self, evaluated: Evaluated) -> None:
        started_at, record = evaluated.started_at, evaluated.record
        self._traces.evaluated(
            EvaluationTrace(
                version=record.version,
                start=started_at,
                end=started_at + record.seconds,
                outcome="done",
                groups=[self._trace_of(group) for group in evaluated.groups],
            )
        )

    def _trace_of(self, group: Group) -> GroupTrace:
        counted = {episode.session_id: episode.reward for episode in group.episodes}
        episodes = []
        for trajectory in self._trajectories(group.group_id):
            outcome = "evaluated" if trajectory.session_id in counted else "retried"
            trajectory.reward = counted.get(trajectory.session_id)
            episodes.append(EpisodeTrace(trajectory=trajectory, outcome=outcome))
        return GroupTrace(
            group_id=group.group_id,
            task=group.task,
            outcome="evaluated",
            episodes=episodes,
            admitted_at=group.admitted_at,
            played_at=group.played_at,
            scored_at=group.scored_at,
            admitted_at_version=group.admitted_at_version,
        )
