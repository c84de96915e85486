"""What a scripted engine is told to do and what it saw: the state behind its HTTP routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from agentrl.engine.wire import BOOT_LABEL, version_of
from agentrl.types import FinishReason, Sampling

FaultKind = Literal["die", "stall", "refuse", "error", "short_logprobs", "nan_logprobs", "no_logprobs", "wrong_spans"]
SwapCall = Literal[
    "pause",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "resume",
    "weight_info",
    "sleep",
    "wake_up",
]
HANG = 0
WAIT_S = 10.0


class Reply(Struct, frozen=True, kw_only=True):
    """What the scripted policy samples. Cut at the request's `max_tokens` or the context; `length` ends it then."""

    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None  # [n]; None gives `scripted_logprob` of each token
    finish_reason: FinishReason = "stop"
    stop_reason: str | int | None = None


Script = Callable[[list[int], Sampling, int], Sequence[int] | Reply]
"""(prompt ids, sampling, version of the weights when the request arrived) -> what is sampled."""


class Fault(Struct, frozen=True, kw_only=True):
    """What goes wrong with one generation once it has sent `after` tokens.

    die: the connection breaks. stall: no further token, for good. refuse: 503 instead of a stream. error: an error
    event inside the stream. The others spoil every later piece (`wrong_spans` the last one) in the way that they name.
    """

    kind: FaultKind
    after: int = 0


class Request(Struct, kw_only=True):
    """One generation as the engine saw it."""

    request_id: str
    prompt_ids: list[int]
    sampling_params: dict[str, Any]  # as sent
    cache_salt: str | None = None
    model: str | None = None  # the adapter that was asked for
    token_ids: list[int] = field(default_factory=list)  # sampled so far
    versions: list[int] = field(default_factory=list)  # of each sampled token
    finish_reason: str | None = None  # None while it runs, and for good when it was broken off
    aborted: bool = False  # the client went away


def scripted_logprob(token_id: int, version: int) -> float:
    """The logprob of a scripted token: exact in binary, different for every token (modulo 1024) and every version."""
    return -(token_id % 1024 + 1) / 1024 - version


class EngineState:
    """Everything that a test may look at or turn.

    `hold()` stops sampling, `allow(n)` lets n tokens through, `release()` lets all through: latency without sleeping.
    `fail_next(fault, ...)` breaks the next generations, one fault each. `refuse_swap[call]` is the HTTP status that
    this call of a swap gets as long as it is set; `HANG` never answers.
    """

    def __init__(
        self,
        script: Script,
        *,
        max_model_len: int = 4096,
        stream_interval: int = 1,
        expected_names: frozenset[str] | None = None,
    ) -> None:
        self.script = script
        self.max_model_len = max_model_len
        self.stream_interval = stream_interval
        self.expected_names = expected_names  # tensors that a swap must bring; None accepts any
        self.is_healthy = True
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.refuse_swap: dict[SwapCall, int] = {}
        self.control_calls: list[str] = []  # in order: "pause?mode=keep&clear_cache=true"
        self.updates: list[dict[str, Any]] = []  # every update_info
        self.cache_resets = 0
        self.kv_use = 0.0  # as /metrics tells it, with the next two
        self.waiting = 0
        self.preemptions = 0
        self.boot()

    def boot(self) -> None:
        """As a server that just started: first weights, not paused, nothing running."""
        self.label = BOOT_LABEL
        self.paused: str | None = None  # the mode
        self.asleep: set[str] = set()  # of "weights" and "kv_cache", what has no memory
        self.discarded = False  # whether its weights were forgotten since the last whole update
        self.update_names: set[str] | None = None  # tensors received since start_weight_update; None outside an update
        self.running = 0  # generations past the queue
        self.aborts = 0  # how often all generations were aborted
        self._budget = float("inf")  # tokens that may still be sampled
        self._changed = asyncio.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def version(self) -> int:
        return version_of(self.label)

    @property
    def prompts(self) -> list[list[int]]:
        """The prompt ids of every generation, in order of arrival."""
        return [request.prompt_ids for request in self.requests]

    def hold(self) -> None:
        self._set_budget(0)

    def allow(self, tokens: int) -> None:
        self._set_budget(self._budget + tokens)

    def release(self) -> None:
        self._set_budget(float("inf"))

    def fail_next(self, *faults: Fault) -> None:
        self.faults.extend(faults)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for `condition`, looked at whenever the engine changes. TimeoutError after `WAIT_S` seconds."""
        async with asyncio.timeout(WAIT_S):
            await self.wait_for(condition)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def enter(self) -> None:
        """Waits in the queue: a paused engine starts nothing new."""
        await self.wait_for(lambda: self.paused is None)
        self.running += 1

    async def take_token(self, aborts: int) -> bool:
        """Waits until a token may be sampled; False when all generations were aborted since `aborts` was read."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.aborts != aborts or (self._budget >= 1 and self.paused in (None, "wait"))
            )
            if self.aborts != aborts:
                return False
            self._budget -= 1
            return True

    def _set_budget(self, budget: float) -> None:
        self._budget = budget
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self.notify(), self._loop)
