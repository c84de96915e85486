"""The run's vLLM servers, each started, watched and started again by an actor of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from agentrl.cluster.actors import EngineActor
from agentrl.cluster.fleet import EngineFleet, Routing
from agentrl.cluster.handles import cause, remote
from agentrl.cluster.parts.actor import Actor
from agentrl.cluster.parts.setting import ACTOR_START_S, Setting, start_limit
from agentrl.cluster.ray_session import actor_class
from agentrl.cluster.transfer import adapter_rank
from agentrl.engine.control import EngineControl
from agentrl.errors import AgentRLError, EngineError
from agentrl.types import SwapRecord

ANSWER_S = 15.0
"""For an actor that is busy with a probe to answer something else; one that takes longer is replaced."""


class Engines:
    """`start`, then `fleet`. `parts` are in the order of the engines' numbers, which are `count` from `first` on."""

    def __init__(self, setting: Setting, *, first: int, count: int) -> None:
        self._setting = setting
        self.parts = [EnginePart(setting, number) for number in range(first, first + count)]

    @property
    def actors(self) -> list[Any]:
        return [part.actor.handle for part in self.parts if part.actor.handle is not None]

    @property
    def urls(self) -> list[str]:
        return [part.control.url for part in self.parts]

    async def start(self) -> None:
        """Raises an AgentRLError when one of them does not come up."""
        began = time.time()
        boots = await asyncio.gather(*(part.start() for part in self.parts))
        for boot in boots:
            self._setting.store.record_swap(boot)
        self._setting.say(f"{len(boots)} vLLM engine(s) ready after {time.time() - began:.0f} s")

    def fleet(self, routing: Routing, *, alone: bool = False) -> EngineFleet:
        """alone: engines for evaluations, which nobody waits for, and which never sleep."""
        setting = self._setting
        engine, supervision = setting.config.engine, setting.config.supervision
        patience_s = supervision.longest_recovery_s + (supervision.max_restarts + 1) * engine.timeouts.startup_s
        fleet = EngineFleet(
            [part.control for part in self.parts],
            mode={part.name: engine.swap_mode if alone else engine.swap_mode_of(part.number) for part in self.parts},
            routing=routing,
            record=setting.store.record_swap,
            sleep_level=None if alone else engine.sleep_level,
            wait_s=0.0 if alone else patience_s,
        )
        for part in self.parts:
            part.fleet = fleet
        return fleet

    def kill(self) -> None:
        for part in self.parts:
            part.actor.kill()


class EnginePart:
    """One engine as the supervisor sees it: quarantined, started again, brought to the newest version, returned."""

    fleet: EngineFleet
    control: EngineControl
    bring: Callable[[], Awaitable[None]] | None = None
    """Brings engines that came back to the newest version; without it, they take the next one."""

    def __init__(self, setting: Setting, number: int) -> None:
        self.name, self.number = f"engine-{number}", number
        self.log: Path = setting.logs / f"{self.name}.log"
        self.down = False
        self._setting = setting
        self._startup_s = setting.config.engine.timeouts.startup_s
        self.actor = Actor(
            f"{self.name}'s actor", self._make, probe_timeout_s=setting.config.supervision.probe_timeout_s
        )

    async def start(self) -> SwapRecord:
        """A new actor and its server. Raises an AgentRLError."""
        self.actor.begin()
        await self.actor.located()
        return await self._boot("start")

    async def probe(self) -> tuple[bool, bool]:
        """Within a swap a busy engine may be late; the swap has timeouts of its own."""
        running, answered = await self.actor.probe()
        return running, answered or (running and self.fleet.swapping)

    async def lost(self) -> None:
        self.down = True
        await self.fleet.lost(self.name)

    async def restart(self) -> None:
        if await self.actor.answers(ANSWER_S):
            boot = await self._boot("restart")
        else:
            self.actor.kill()
            boot = await self.start()
        self.down = False
        await self.fleet.back(self.control, boot)
        if self.bring is not None:
            await self.bring()
            await self.fleet.until_current(self.name)

    async def _boot(self, how: str) -> SwapRecord:
        began = time.time()
        async with start_limit(f"{self.name} (vLLM)", self._startup_s + ACTOR_START_S):
            try:
                url = await remote(getattr(self.actor.handle, how).remote())
            except AgentRLError:
                raise
            except Exception as error:
                raise EngineError(f"{self.name}'s actor died: {cause(error)}") from error
        setting = self._setting
        timeouts, key = setting.config.engine.timeouts, setting.site.engine_key
        self.control = EngineControl(url, engine_id=self.name, timeouts=timeouts, key=key)
        return SwapRecord(engine_id=self.name, version=0, mode="boot", started_at=began, finished_at=time.time())

    def _make(self) -> Any:
        setting, config = self._setting, self._setting.config.engine
        if self.number >= config.replicas:  # ports are given for those of training
            config = config.model_copy(update={"ports": ()})
        return actor_class(EngineActor, **setting.site.engine(self.number)).remote(
            str(setting.model),
            config,
            logs=setting.logs,
            weights=setting.weights,
            index=self.number,
            adapter_rank=adapter_rank(setting.config),
            key=setting.site.engine_key,
        )


async def one_a_machine(parts: Sequence[EnginePart]) -> list[Any]:
    """Of engines' actors, for weights that travel to their machines; one that does not say where it is, is left out."""
    handles = [part.actor.handle for part in parts if not part.down]
    answers = await asyncio.gather(*map(_machine, handles), return_exceptions=True)
    named = zip(answers, handles, strict=True)
    return list({machine: handle for machine, handle in named if isinstance(machine, str)}.values())


async def _machine(handle: Any) -> str:
    async with asyncio.timeout(ANSWER_S):
        node, _ = await remote(handle.place.remote())
    return str(node)
