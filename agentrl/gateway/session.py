"""One session: what it was opened with, its calls, how much it may still use, and its seal. No I/O.

Open → sealed, once; → saved, when the store has it; → released, its tokens no longer in memory.
Calls in flight are tasks that it knows, so that sealing can end them; each records what it sampled before it ends, so
nothing is added to a sealed session's graph.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from agentrl.gateway.graph import TokenGraph
from agentrl.gateway.refusal import Refusal, invalid
from agentrl.types import Limits, Mode, Task, Trajectory

SEAL_S = 10.0
"""How long calls in flight may take to end when the session is sealed."""


Score = tuple[float | None, dict[str, float | None]]
"""(reward, components)."""


class Session:
    """`pins` are the sampling fields that the run set for every call. Times are unix seconds of the caller's clock."""

    def __init__(
        self,
        session_id: str,
        api_key: str,
        *,
        now: float,
        task: Task | None = None,
        metadata: Mapping[str, Any] | None = None,
        pins: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        mode: Mode = "train",
        reward_by: Literal["session", "admin"] = "session",
    ) -> None:
        self.id = session_id
        self.api_key = api_key
        self.task = task
        self.metadata = dict(metadata or {})
        self.pins = dict(pins or {})
        self.limits = limits or Limits()
        self.mode: Mode = mode
        self.reward_by = reward_by
        self.created_at = self.last_used = now
        self.finished_at = 0.0
        self.graph = TokenGraph()
        self.reward: float | None = None
        self.components: dict[str, float | None] = {}
        self.stop_reason: str | None = None
        self.sealed = False
        self.saved = False
        self.released = False
        self.stored_score: Score | None = None  # the store's, as far as known
        self.storing: asyncio.Task[None] | None = None
        self.finishing = asyncio.Lock()  # held by whoever seals, scores or stores it
        self._admitted = 0  # calls that were answered or may still be
        self._in_flight: set[asyncio.Task[Any]] = set()

    @classmethod
    def of_stored(cls, trajectory: Trajectory) -> Session:
        """What is left of a session that only the store remembers: sealed, and no key opens it."""
        session = cls(trajectory.session_id, "", now=trajectory.finished_at, mode=trajectory.mode)
        session.stop_reason, session.finished_at = trajectory.stop_reason, trajectory.finished_at
        session.reward, session.components = trajectory.reward, trajectory.components
        session.stored_score = session.score
        session.sealed = session.saved = True
        session.release()
        return session

    @property
    def score(self) -> Score:
        return self.reward, self.components

    @property
    def sampled_tokens(self) -> int:
        """Of calls that were answered. What a lost or aborted one sampled (`finish_reason` "abort") costs nobody."""
        return sum(len(call.token_ids) for call in self.graph.calls if call.finish_reason != "abort")

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def admit(self, now: float) -> None:
        """Counts one more call in; `withdraw` it when it got no answer, for an engine's failure costs no call.

        Raises Refusal: 409 when sealed, 400 when a limit is used up.
        """
        self.check_open()
        self.last_used = now
        self.check_deadline(now)
        if self.limits.max_calls is not None and self._admitted >= self.limits.max_calls:
            raise self.limit_reached("max_calls", f"all {self.limits.max_calls} calls are used")
        self.check_tokens()
        self._admitted += 1

    def withdraw(self) -> None:
        self._admitted -= 1

    def check_tokens(self) -> None:
        if self.tokens_left == 0:
            raise self.limit_reached("max_tokens", f"all {self.limits.max_tokens} sampled tokens are used")

    def check_open(self) -> None:
        if self.sealed:
            raise sealed(self.id)

    def check_deadline(self, now: float) -> None:
        if self.seconds_left(now) == 0:
            raise self.limit_reached("deadline_s", f"its {self.limits.deadline_s:g} seconds are over")

    def seconds_left(self, now: float) -> float | None:
        """Until the deadline, at least 0; None without one."""
        if self.limits.deadline_s is None:
            return None
        return max(0.0, self.created_at + self.limits.deadline_s - now)

    @property
    def tokens_left(self) -> int | None:
        if self.limits.max_tokens is None:
            return None
        return max(0, self.limits.max_tokens - self.sampled_tokens)

    def limit_reached(self, limit: str, why: str) -> Refusal:
        """The clean end that an agent understands: not to be retried, the limit by name. Sets the stop reason."""
        if self.stop_reason is None:
            self.stop_reason = Limits.stop_reason(limit)
        message = f"session {self.id} has reached limits.{limit}: {why}; finish the episode"
        return Refusal(400, "session_limit_reached", message, param=f"limits.{limit}")

    def track(self, task: asyncio.Task[Any]) -> None:
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    def set_reward(
        self, reward: float | None, components: Mapping[str, float | None] | None, call_id: str | None
    ) -> None:
        """The reward of the session, or of one call. Raises Refusal for a call that is not there."""
        if call_id is None:
            self.reward = reward
            self.components = dict(components or {})
            return
        for call in self.graph.calls:
            if call.call_id == call_id:
                call.reward = reward
                return
        raise invalid("call_id", f"session {self.id} has no call {call_id!r}; use the id of an answer it was given")

    async def seal(self, stop_reason: str | None, now: float) -> None:
        """Ends it: later calls are refused, calls in flight are cancelled and waited for."""
        if self.sealed:
            return
        self.sealed = True
        self.finished_at = self.last_used = now
        self.stop_reason = stop_reason or self.stop_reason
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=SEAL_S)

    def release(self) -> None:
        """Lets go of all that the store has: what is left is a few hundred bytes that answer for the session."""
        self.released = True
        self.graph, self.task, self.metadata = TokenGraph(), None, {}

    def trajectory(self) -> Trajectory:
        """Not of a released session: the store has its."""
        return Trajectory(
            session_id=self.id,
            task=self.task,
            mode=self.mode,
            stop_reason=self.stop_reason,
            reward=self.reward,
            components=self.components,
            calls=list(self.graph.calls),
            rows=self.graph.rows(),
            dropped=self.graph.dropped(),
            metadata=self.metadata,
            created_at=self.created_at,
            finished_at=self.finished_at,
        )


def sealed(session_id: str) -> Refusal:
    return Refusal(409, "session_sealed", f"session {session_id} is finished; open a new one to go on")
