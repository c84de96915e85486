"""An environment in a process of its own: whatever it does to itself, it costs its own episode."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

import msgspec

from agentrl.env.base import Observation
from agentrl.env.contract import Step, checked_reset, checked_step, checked_tools
from agentrl.env.isolated.wire import Ended
from agentrl.env.threads import timed_out
from agentrl.errors import (
    AgentRLError,
    ConfigError,
    EnvironmentCrash,
    EnvironmentFault,
    EnvironmentOutOfMemory,
    EnvironmentTimeout,
    EnvironmentTooManyProcesses,
)
from agentrl.messages import Message
from agentrl.rollout.hosts.base import EnvHost
from agentrl.rollout.hosts.nursery import EnvProcess, Nursery
from agentrl.types import Task

log = logging.getLogger(__name__)

DYING_S = 1.0  # for a process that closed its connection to end by itself, and its guard to say how
KILLED_S = 15.0  # longer than a guard takes to end what it guards

_FAULTS = {
    kind.reason: kind for kind in (EnvironmentFault, EnvironmentTimeout, EnvironmentOutOfMemory, EnvironmentCrash)
}


class _RemoteTraceback(Exception):
    """Carries the traceback of another process into the log."""

    def __str__(self) -> str:
        return f"in the environment's process\n{self.args[0]}"


class ProcessHost(EnvHost):
    """Every answer is checked again on this side: the process is not trusted with what we keep."""

    def __init__(
        self, nursery: Nursery, env_kwargs: dict[str, Any], *, name: str, timeout_s: float, memory_mb: int
    ) -> None:
        self._nursery = nursery
        self._env_kwargs = env_kwargs
        self._name = name
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._process: EnvProcess | None = None
        self._fault: str | None = None  # why nothing more can be called
        self._made = False

    async def reset(self, task: Task) -> Observation:
        self._process = await self._nursery.spawn()
        await self._ask("__init__", {"call": "make", "env_id": task.env_id, "kwargs": self._env_kwargs})
        self._made = True
        observation = await self._ask("reset", {"call": "reset", "task": msgspec.to_builtins(task)})
        return checked_reset(self._name, (observation, {}))

    async def tools(self) -> list[dict[str, Any]]:
        return checked_tools(self._name, await self._ask("tools", {"call": "tools"}))

    async def step(self, action: Message) -> Step:
        found = await self._ask("step", {"call": "step", "action": action})
        try:
            info = {"role": found.get("role"), "role_rewards": found.get("role_rewards")}
            result: Any = (found["observation"], found["reward"], found["terminated"], found["truncated"], info)
        except (KeyError, TypeError, AttributeError) as error:
            raise EnvironmentCrash(f"{self._name}.step sent what is no step; it writes to our connection") from error
        return checked_step(self._name, result)

    async def close(self) -> None:
        if self._process is None:
            return
        try:
            if self._made and self._fault is None and not self._process.is_gone:
                await self._ask("close", {"call": "close"})
        finally:
            await self._free()

    async def _ask(self, method: str, request: dict[str, Any]) -> Any:
        assert self._process is not None
        if self._fault is not None:
            raise EnvironmentFault(f"{self._name}.{method} was not called: {self._fault}")
        try:
            async with asyncio.timeout(self._timeout_s) as scope:
                answer = await self._process.ask(request)
        except asyncio.CancelledError:
            self._give_up("an earlier call was cancelled")
            raise
        except TimeoutError:
            if not scope.expired():
                raise
            self._give_up("an earlier call did not return in time")
            raise timed_out(f"{self._name}.{method}", self._timeout_s) from None
        except TypeError as error:
            raise ConfigError(
                f"what {self._name}.{method} is given is no JSON ({error}), which it has to be for a process of its "
                'own; give plain values, or set rollout.isolation = "thread"'
            ) from error
        except (OSError, EOFError) as error:
            raise await self._why_it_ended(method) from error
        except (ValueError, AgentRLError) as error:
            self._give_up("it sent what is no answer")
            raise EnvironmentCrash(f"{self._name}.{method} sent what is no answer ({error})") from error
        return self._value(method, answer)

    def _value(self, method: str, answer: Any) -> Any:
        fault = answer.get("fault") if isinstance(answer, dict) else {}
        if fault is None:
            return answer.get("value")
        if not isinstance(fault, dict) or not isinstance(fault.get("text"), str):
            raise EnvironmentCrash(f"{self._name}.{method} sent what is no answer; it writes to our connection")
        if fault.get("reason") == "config":
            raise ConfigError(fault["text"])
        kind = _FAULTS.get(str(fault.get("reason")), EnvironmentFault)
        raise kind(fault["text"]) from _RemoteTraceback(fault.get("trace"))

    def _give_up(self, why: str) -> None:
        assert self._process is not None
        self._fault = why
        self._process.end()

    async def _why_it_ended(self, method: str) -> EnvironmentFault:
        assert self._process is not None
        self._fault = "its process has ended"
        ended = await self._process.ended(DYING_S)
        where = f"{self._name}.{method}"
        if ended is None and not self._process.is_gone:
            self._process.end()
            return EnvironmentCrash(f"{where} closed its connection to us; it must leave other files alone")
        return self._fault_of(where, ended)

    def _fault_of(self, where: str, ended: Ended | None) -> EnvironmentFault:
        if ended is None or ended.cause == "told":
            return EnvironmentCrash(f"{where}: the process that guards it was killed from outside")
        if ended.cause == "memory":
            return EnvironmentOutOfMemory(
                f"{where}: it held {ended.memory_bytes / 2**20:,.0f} MiB, so they were ended; "
                f"rollout.env_memory_mb allows {self._memory_mb:,}"
            )
        if ended.cause == "processes":
            return EnvironmentTooManyProcesses(
                f"{where}: it had {ended.processes} processes and was ended; rollout.env_processes allows fewer"
            )
        if ended.cause == "exited":
            return EnvironmentCrash(f"{where} ended its process with exit status {ended.status}")
        return EnvironmentCrash(f"{where}: its process was killed by {_signal_name(ended.status)}")

    async def _free(self) -> None:
        """When this returns nothing of the environment is left, unless the log says so."""
        assert self._process is not None
        process, self._process = self._process, None
        try:
            process.end()
            ended = await process.ended(KILLED_S)
            if ended is not None and ended.left:
                log.warning("%s: %d of its processes could not be killed", self._name, ended.left)
            elif ended is None and not process.is_gone:
                log.warning("%s: its guard did not say within %g s that it has ended", self._name, KILLED_S)
        finally:
            process.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
