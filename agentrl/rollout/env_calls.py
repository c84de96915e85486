"""One environment, called from the event loop: it cannot block it, hang it, or break its contract unseen."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import reprlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import orjson
from msgspec import Struct

from agentrl.env.base import Env, Observation
from agentrl.env.space import ObservationSpace
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import ConfigError, EnvironmentFault, EnvironmentTimeout
from agentrl.messages import Message
from agentrl.types import Task

_OBSERVATIONS = ObservationSpace()


class Step(Struct, frozen=True):
    """What a step gave, checked."""

    observation: Observation
    reward: float | None  # finite; None is missing
    terminated: bool
    truncated: bool


class EnvCalls:
    """Makes an environment, calls it with a time limit each, and closes it.

    `async def` methods run on the event loop, plain ones in a thread that is this environment's own. Every method
    raises EnvironmentTimeout, or EnvironmentFault for whatever else goes wrong; the original is its cause.
    """

    def __init__(
        self, make: Callable[[], gymnasium.Env[Any, Any]], *, name: str, timeout_s: float, hung: HungCalls
    ) -> None:
        self._make = make
        self._name = name
        self._timeout_s = timeout_s
        self._thread = CallThread(f"agentrl-env-{name}", hung)
        self._env: gymnasium.Env[Any, Any] | None = None

    async def reset(self, task: Task) -> Observation:
        """Makes the environment, and gives the first messages of the task."""
        self._env = await self._guarded("__init__", self._make)
        options = {**task.options, "split": task.split}
        result = await self._call("reset", seed=task.seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._fault("reset", f"returned {_shown(result)}; return (observation, info)")
        observation, info = result
        if not isinstance(info, dict):
            raise self._fault("reset", f"returned an info of type {type(info).__name__}; return a dict")
        return self._observation("reset", observation, ended=False)

    async def tools(self) -> list[dict[str, Any]]:
        """OpenAI's `tools`; none for a gymnasium environment that has no such attribute."""
        env = self._env
        assert env is not None

        def read() -> list[dict[str, Any]]:
            return list(env.get_wrapper_attr("tools")) if env.has_wrapper_attr("tools") else []

        tools = await self._guarded("tools", read)
        try:
            found = orjson.loads(orjson.dumps(tools, option=orjson.OPT_SERIALIZE_NUMPY))
        except TypeError as error:
            raise self._fault("tools", f"gave tools that are not JSON: {error}") from error
        if not all(isinstance(tool, dict) for tool in found):
            raise self._fault("tools", f"gave {_shown(tools)}; a tool is an entry of OpenAI's `tools`, a dict")
        return list(found)

    async def step(self, action: Message) -> Step:
        # A copy, for the conversation must reach the gateway as it was sampled, whatever the environment does to it.
        result = await self._call("step", Message(orjson.loads(orjson.dumps(action))))
        if not isinstance(result, tuple) or len(result) != 5:
            raise self._fault(
                "step",
                f"returned {_shown(result)}; return (observation, reward, terminated, truncated, info)",
            )
        observation, reward, terminated, truncated, info = result
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                raise self._fault("step", f"returned {name}={_shown(flag)}; return True or False")
        if not isinstance(info, dict):
            raise self._fault("step", f"returned an info of type {type(info).__name__}; return a dict")
        ended = bool(terminated or truncated)
        checked = self._observation("step", observation, ended=ended)
        return Step(checked, self._reward(reward), bool(terminated), bool(truncated))

    async def close(self) -> None:
        """Closes what was made. An environment that still hangs in a call is left alone: its thread is its own."""
        try:
            if self._env is not None and not self._thread.abandoned:
                await self._call("close")
        finally:
            self._thread.close()

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        assert self._env is not None
        bound = functools.partial(getattr(self._env, method), *args, **kwargs)
        if isinstance(self._env, Env):
            on_loop = self._env.is_async(method)
        else:
            on_loop = inspect.iscoroutinefunction(getattr(self._env, method))
        return await (self._guarded_async(method, bound) if on_loop else self._guarded(method, bound))

    async def _guarded(self, method: str, call: Callable[[], Any]) -> Any:
        what = f"{self._name}.{method}"
        try:
            return await self._thread.run(call, self._timeout_s, what)
        except (EnvironmentFault, ConfigError):
            raise
        except Exception as error:
            raise self._fault(method, f"raised {_told(error)}") from error

    async def _guarded_async(self, method: str, call: Callable[[], Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(self._timeout_s) as scope:
                return await call()
        except EnvironmentFault:
            raise
        except asyncio.CancelledError as error:
            if task.cancelling():
                raise
            raise self._fault(method, "cancelled itself") from error
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and scope.expired():
                raise EnvironmentTimeout(f"{self._name}.{method} took longer than {self._timeout_s:g} s") from None
            raise self._fault(method, f"raised {_told(error)}") from error

    def _observation(self, method: str, observation: Any, *, ended: bool) -> Observation:
        fault = _OBSERVATIONS.fault(observation)
        if fault is not None:
            raise self._fault(method, f"returned no observation: {fault}")
        if not observation and not ended:
            raise self._fault(method, "returned no new message and the episode goes on; return one, or end the episode")
        try:
            return [Message(message) for message in orjson.loads(orjson.dumps(observation))]
        except TypeError as error:
            raise self._fault(method, f"returned messages that are not JSON: {error}") from error

    def _reward(self, reward: Any) -> float | None:
        if reward is None:
            return None
        try:
            value = float(reward)
        except Exception as error:  # a stranger's `__float__`, an int past the floats
            raise self._fault("step", f"returned the reward {_shown(reward)}; return a number or None") from error
        if not math.isfinite(value):
            raise self._fault(
                "step", f"returned the reward {value}; return a finite number, or None when it is missing"
            )
        return value

    def _fault(self, method: str, what: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self._name}.{method} {what}")


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its `__str__` is the environment's code too
        return type(error).__name__


def _shown(value: object) -> str:
    """A short repr; never raises, as the environment's own `__repr__` and Python's of a very large int may."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__}"
