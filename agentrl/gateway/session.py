"""One session: what it was opened with, its calls, how much it may still use, and its seal. No I/O.

Open → sealed, once; → saved, when the store has it; → released, its tokens no longer in memory.
Calls in flight are tasks that it knows, so that sealing can end them; each records what it sampled before it ends, so
nothing is added to a sealed session's graph.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from agentrl.gateway.attempts import Asked, Attempts
from agentrl.gateway.canonical import LastKeys
from agentrl.gateway.drifts import Drifts, SessionDrift
from agentrl.gateway.graph import TokenGraph
from agentrl.gateway.refusal import Refusal, invalid
from agentrl.types import Call, Limits, Mode, Row, StopReason, Task, Trajectory

SEAL_S = 10.0
"""How long calls in flight may take to end when the session is sealed."""


Score = tuple[float | None, dict[str, float | None]]
"""(reward, components)."""


History = Literal["append", "rerender"]
"""How a next turn's prompt is made: the recorded ids go on, or the template writes all of it anew."""

MAX_UNANSWERED = 1000

UNDELIVERED = "undelivered"
"""Why a sample is not trained whose answer its client was gone for, unless a retry fetches it."""


class HasTokens(Protocol):
    token_ids: list[int]


class Session:
    """`pins` are the sampling fields that the run set for every call. Times are unix seconds of the caller's clock.

    Of its key only the digest is known. An eval session stays with the version that answered it first unless
    `across_swaps`.
    """

    def __init__(
        self,
        session_id: str,
        key_digest: bytes,
        *,
        now: float,
        run_id: str | None = None,
        task: Task | None = None,
        metadata: Mapping[str, Any] | None = None,
        pins: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        mode: Mode = "train",
        reward_by: Literal["session", "admin"] = "session",
        history: History = "append",
        across_swaps: bool = False,
    ) -> None:
        self.id = session_id
        self.key_digest = key_digest
        self.run_id = run_id
        self.task = task
        self.metadata = dict(metadata or {})
        self.pins = dict(pins or {})
        self.limits = limits or Limits()
        self.mode: Mode = mode
        self.reward_by = reward_by
        self.history: History = history
        self.across_swaps = across_swaps
        self.version: int | None = None  # the one that an eval session stays with
        self.attempts = Attempts()
        self.asked: dict[str, Asked] = {}  # by call id, until the call is on its way to the journal
        self.keys = LastKeys()
        self.drifts = Drifts()
        self.drift: SessionDrift | None = None  # measured once, at its end
        self.created_at = self.last_used = now
        self.finished_at = 0.0
        self.graph = TokenGraph()
        self.reward: float | None = None
        self.components: dict[str, float | None] = {}
        self.stop_reason: str | None = None
        self.sealed = False
        self._rows: list[Row] | None = None  # of its trajectory, once it is settled
        self.settled = False  # its trajectory was taken for the store: of its calls nothing changes any more
        self.saved = False
        self.released = False
        self.stored_score: Score | None = None  # the store's, as far as known
        self.storing: asyncio.Task[None] | None = None
        self.finishing = asyncio.Lock()  # held by whoever seals, scores or stores it
        self.journaled = 0  # calls that are in the journal, or on their way there
        self._admitted = 0  # calls that were answered or may still be
        self.unanswered: dict[bytes, str] = {}  # digest of a request that failed and was not answered since -> why
        self.overflowed = False  # the last request left no room for an answer
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._sampling: set[HasTokens] = set()

    @classmethod
    def restore(
        cls,
        opened: Mapping[str, Any],
        calls: Sequence[Call],
        reward: float | None,
        components: dict[str, float | None],
        asked: Mapping[int, Asked] | None = None,
    ) -> Session:
        """A session as a gateway left it that died. `opened` are the arguments it was made with.

        `asked`: by the index of a call, the request that it answers, where that may be sent again.
        """
        session = cls(**opened)
        for call in calls:
            session.graph.add(call, [bytes.fromhex(key) for key in call.conversation.split()])
        session.reward, session.components = reward, components
        session.set_delivered(session.attempts.restore(asked or {}, calls), False)
        session.journaled = len(calls)
        session._admitted = sum(call.finish_reason != "abort" for call in calls)
        if session.pinned and calls and calls[0].versions:
            session.version = calls[0].versions[0].version
        return session

    @classmethod
    def of_stored(cls, trajectory: Trajectory) -> Session:
        """What is left of a session that only the store remembers: sealed, and no key opens it."""
        run_id = trajectory.metadata.get("run_id")
        session = cls(trajectory.session_id, b"", now=trajectory.finished_at, run_id=run_id, mode=trajectory.mode)
        session.stop_reason, session.finished_at = trajectory.stop_reason, trajectory.finished_at
        session.reward, session.components = trajectory.reward, trajectory.components
        session.stored_score = session.score
        session.sealed = session.settled = session.saved = True
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

    @property
    def pinned(self) -> bool:
        """Whether it stays with one version."""
        return self.mode == "eval" and not self.across_swaps

    def admit(self, now: float, count: int = 1) -> None:
        """Counts calls in; `withdraw` those that got no answer, for an engine's failure costs no call.

        Raises Refusal: 409 when sealed, 400 when a limit is used up.
        """
        self.check_open()
        self.last_used = now
        self.check_deadline(now)
        limit = self.limits.max_calls
        if limit is not None and self._admitted + count > limit:
            left = f"{limit - self._admitted} of {limit} calls are left and {count} were asked for"
            raise self.limit_reached("max_calls", left if self._admitted < limit else f"all {limit} calls are used")
        self.check_tokens()
        self.check_tool_calls()
        self._admitted += count

    def withdraw(self, count: int = 1) -> None:
        self._admitted -= count

    def begin_sampling(self, sample: HasTokens) -> None:
        """From now on its tokens count towards the limit, for it will be answered; until `end_sampling`."""
        self._sampling.add(sample)

    def end_sampling(self, sample: HasTokens) -> None:
        self._sampling.discard(sample)

    def check_tokens(self) -> None:
        if self.tokens_left == 0:
            raise self.limit_reached("max_tokens", f"all {self.limits.max_tokens} sampled tokens are used")

    def check_tool_calls(self) -> None:
        limit = self.limits.max_tool_calls
        if limit is None:
            return
        answered = (call.message for call in self.graph.calls if call.finish_reason != "abort")
        made = sum(len(message.get("tool_calls") or ()) for message in answered)
        if made > limit:
            raise self.limit_reached("max_tool_calls", f"{made} tool calls were made and {limit} are allowed")

    def check_open(self) -> None:
        if self.sealed:
            raise sealed(self.id)

    def check_deadline(self, now: float) -> None:
        if self.seconds_left(now) == 0:
            raise self.deadline_over()

    def deadline_over(self) -> Refusal:
        return self.limit_reached("deadline_s", f"its {self.limits.deadline_s:g} seconds are over")

    def seconds_left(self, now: float) -> float | None:
        """Until the deadline, at least 0; None without one."""
        if self.limits.deadline_s is None:
            return None
        return max(0.0, self.created_at + self.limits.deadline_s - now)

    @property
    def tokens_left(self) -> int | None:
        if self.limits.max_tokens is None:
            return None
        in_flight = sum(len(sample.token_ids) for sample in self._sampling)
        return max(0, self.limits.max_tokens - self.sampled_tokens - in_flight)

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
        if (index := self.graph.find(call_id)) is None:
            raise invalid("call_id", f"session {self.id} has no call {call_id!r}; use the id of an answer it was given")
        self.graph.calls[index].reward = reward

    def conversation(self) -> list[dict[str, Any]]:
        """The messages up to the answer that came last; [] where calls were no messages."""
        index = next((i for i in reversed(range(len(self.graph.calls))) if self._answered(i)), None)
        path = []
        while index is not None:
            path.append(self.graph.calls[index])
            index = path[-1].parent
        return [message for call in reversed(path) for message in (*call.messages, call.message)]

    def _answered(self, index: int) -> bool:
        return self.graph.calls[index].finish_reason != "abort"

    def left_unanswered(self, request: bytes, code: str) -> None:
        """A request failed that was not its sender's fault; a retry may still be answered. `request` is its digest."""
        if len(self.unanswered) < MAX_UNANSWERED:
            self.unanswered[request] = code

    def set_delivered(self, call_ids: Iterable[str], delivered: bool) -> list[int]:
        """Whether the client can have had these answers; one that it cannot have had is not trained.

        Returns the indices of the calls that changed.
        """
        changed = []
        for index in map(self.graph.find, call_ids):
            if index is not None and not self.settled:
                call = self.graph.calls[index]
                if call.untrainable == (UNDELIVERED if delivered else None):
                    call.untrainable = None if delivered else UNDELIVERED
                    changed.append(index)
        return changed

    async def seal(self, stop_reason: str | None, now: float, *, limit_first: bool = False) -> None:
        """Ends it: later calls are refused, calls in flight are cancelled and waited for.

        `limit_first`: where a call was refused for a limit, or the last one for a full context, that is the stop reason
        and not `stop_reason`.
        """
        if self.sealed:
            return
        self.sealed = True
        self.finished_at = self.last_used = now
        limit = self.stop_reason or (StopReason.CONTEXT.value if self.overflowed else None)
        self.stop_reason = (limit_first and limit) or stop_reason or self.stop_reason
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=SEAL_S)

    def release(self) -> None:
        """Lets go of all that the store has: what is left is a few hundred bytes that answer for the session."""
        self.released = True
        self.graph, self.task, self.metadata, self._rows = TokenGraph(), None, {}, None
        self.attempts, self.keys, self.drifts = Attempts(), LastKeys(), Drifts()

    def trajectory(self) -> Trajectory:
        """Not of a released session: the store has its."""
        if self._rows is None or not self.settled:
            self._rows = self.graph.rows()
        return Trajectory(
            session_id=self.id,
            task=self.task,
            mode=self.mode,
            stop_reason=self.stop_reason,
            reward=self.reward,
            components=self.components,
            calls=list(self.graph.calls),
            rows=list(self._rows),
            dropped=self.graph.dropped(),
            metadata=self.metadata,
            created_at=self.created_at,
            finished_at=self.finished_at,
        )


def sealed(session_id: str) -> Refusal:
    return Refusal(409, "session_sealed", f"session {session_id} is finished; open a new one to go on")
