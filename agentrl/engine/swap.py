"""`WeightSwap`: one version into many engines at once. An engine that fails is left paused, the others go on."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, get_args

from agentrl.engine.control import EngineControl
from agentrl.errors import EngineError, SwapError
from agentrl.types import SwapMode, SwapRecord, WeightGroup

Part = Literal["pause", "load", "finish", "wake", "resume"]

PARTS: tuple[Part, ...] = get_args(Part)
PAUSES: dict[SwapMode, tuple[str, bool]] = {
    "keep": ("keep", False),
    "recompute": ("keep", True),
    "drain": ("wait", True),
}
"""vLLM's pause mode and whether it clears its caches, for each swap mode."""


class EngineSwap:
    """One engine's way through a swap: paused, loaded, committed; or failed, for good, at any point."""

    def __init__(
        self,
        control: EngineControl,
        version: int,
        mode: SwapMode,
        *,
        asleep: bool = False,
        log: Callable[[SwapRecord], None] = lambda record: None,
    ) -> None:
        self.control = control
        self._log = log
        self.version, self.mode = version, mode
        self.asleep = asleep
        self.seconds: dict[Part, float] = {}
        self.error: SwapError | None = None
        self.blameless = False  # the sender failed, not this engine
        self.record: SwapRecord | None = None
        self._started_at = time.time()

    async def pause(self) -> None:
        """One that may be asleep first takes back memory for its weights, and for its KV cache after they came."""
        if self.asleep:
            await self.control.wake_up("weights")
        pause_mode, clear_cache = PAUSES[self.mode]
        await self.control.pause(mode=pause_mode, clear_cache=clear_cache)
        await self.control.start_weight_update()

    async def load(self, group: WeightGroup) -> None:
        await self.control.update_weights(group)

    async def finish(self) -> None:
        """Only an engine that says itself that it has the version is resumed."""
        await self.control.finish_weight_update(self.version)
        served = await self.control.version()
        if served != self.version:
            raise SwapError(f"engine {self.control.engine_id} serves version {served} after the swap to {self.version}")

    async def commit(self, digest: str) -> None:
        """Finishes and resumes at this engine's own pace."""
        await self.attempt("finish", self.finish())
        if self.error is None and self.asleep:
            await self.attempt("wake", self.control.wake_up("kv_cache"))
        if self.error is not None:
            return
        record = SwapRecord(
            engine_id=self.control.engine_id,
            version=self.version,
            mode=self.mode,
            started_at=self._started_at,
            finished_at=time.time(),
            digest=digest,
        )
        self._log(record)
        await self.attempt("resume", self.control.resume())
        if self.error is None:
            self.record = record

    async def attempt(self, part: Part, step: Awaitable[None]) -> None:
        """Runs one step; a failure is kept as this engine's error and the update is closed on its side."""
        started = time.perf_counter()
        try:
            await step
        except EngineError as error:
            await self.fail(f"failed to {part}: {error}")
        except BaseException as error:  # cancelled: there is no time left to ask the engine anything
            self.error, self.blameless = self._missed(f"interrupted while asked to {part}: {error!r}"), True
            raise
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - started

    async def fail(self, reason: str, *, blameless: bool = False) -> None:
        self.error, self.blameless = self._missed(reason), blameless
        await self.control.abort_weight_update()

    def _missed(self, reason: str) -> SwapError:
        return SwapError(f"engine {self.control.engine_id} did not get version {self.version}; {reason}")


class WeightSwap:
    """Use: `async with WeightSwap(controls, version, mode) as swap: await swap.load(group)`, for every group in order.

    A clean exit commits: each engine finishes, confirms the version, and resumes. An engine that fails anywhere stays
    paused and is in `failures`: it must get no traffic until a later swap has passed on it. When the caller raises, all
    engines have failed. Raises SwapError when there is no engine left. `asleep` wakes those that are.
    """

    def __init__(
        self,
        controls: Sequence[EngineControl],
        version: int,
        mode: SwapMode | Mapping[str, SwapMode],
        *,
        asleep: bool = False,
        fed: bool = False,
        log: Callable[[SwapRecord], None] = lambda record: None,
    ) -> None:
        """mode: of all engines, or of each by its id. fed: whether each of them was sent every tensor before.

        `log` hears of an engine that has the version before that samples with it.
        """
        self.version = version
        self.fed = fed
        self._parts = PARTS if asleep else tuple(part for part in PARTS if part != "wake")
        self._engines = [
            EngineSwap(
                control, version, mode if isinstance(mode, str) else mode[control.engine_id], asleep=asleep, log=log
            )
            for control in controls
        ]
        self._digest = hashlib.blake2b(digest_size=16)  # of the groups' digests, in order

    @property
    def records(self) -> list[SwapRecord]:
        """The engines that took the version. Whole after the context closed."""
        return [engine.record for engine in self._engines if engine.record is not None]

    @property
    def failures(self) -> dict[str, SwapError]:
        """By engine id."""
        return {engine.control.engine_id: engine.error for engine in self._engines if engine.error is not None}

    @property
    def blameless(self) -> set[str]:
        """Those of the failed that did what they were asked: the sender failed."""
        return {engine.control.engine_id for engine in self._engines if engine.blameless}

    @property
    def seconds(self) -> dict[str, float]:
        """Of the slowest engine, for each part: pause, load, finish, resume, and wake for engines that slept.

        Then of each engine, as "engine-0.pause".
        """
        slowest: dict[str, float] = {
            part: max((engine.seconds.get(part, 0.0) for engine in self._engines), default=0.0) for part in self._parts
        }
        each = {
            f"{engine.control.engine_id}.{part}": seconds
            for engine in self._engines
            for part, seconds in engine.seconds.items()
        }
        return {**slowest, **each}

    async def load(self, group: WeightGroup) -> None:
        """Returns when every engine has read the group; its file may be deleted then."""
        if group.version != self.version:
            raise SwapError(f"a weight group of version {group.version} in the swap to {self.version}")
        self._digest.update(bytes.fromhex(group.digest))
        await self._each("load", lambda engine: engine.load(group))

    async def __aenter__(self) -> Self:
        try:
            await self._each("pause", EngineSwap.pause)
        except BaseException as error:
            await self._fail_all(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._fail_all(error)
            return
        await asyncio.gather(*(engine.commit(self._digest.hexdigest()) for engine in self._going()))
        self._raise_without_engines()

    async def _fail_all(self, error: BaseException) -> None:
        reason = f"the sender failed: {error!r}"
        await asyncio.gather(*(engine.fail(reason, blameless=True) for engine in self._going()))

    def _going(self) -> list[EngineSwap]:
        return [engine for engine in self._engines if engine.error is None]

    async def _each(self, part: Part, step: Callable[[EngineSwap], Awaitable[None]]) -> None:
        await asyncio.gather(*(engine.attempt(part, step(engine)) for engine in self._going()))
        self._raise_without_engines()

    def _raise_without_engines(self) -> None:
        if not self._going():
            reasons = "; ".join(str(error) for error in self.failures.values()) or "there is no engine"
            raise SwapError(f"no engine took version {self.version}: {reasons}")
