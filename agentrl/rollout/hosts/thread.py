"""An environment in the worker's own process, in threads that are its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import orjson

from agentrl.env.base import Env, Observation
from agentrl.env.contract import Step, checked_reset, checked_step, checked_tools, raised
from agentrl.env.loops import LoopThread
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.messages import Message
from agentrl.rollout.hosts.base import EnvHost
from agentrl.types import Task


class ThreadHost(EnvHost):
    """Plain methods run in one thread, `async def` ones on the event loop of another, both this environment's own.

    Python code that outlives its limit is ended. A call that hangs in C code keeps its thread: it is counted in
    `hung`, and refused past its cap.
    """

    def __init__(
        self, make: Callable[[], gymnasium.Env[Any, Any]], *, name: str, timeout_s: float, hung: HungCalls
    ) -> None:
        self._make = make
        self._name = name
        self._timeout_s = timeout_s
        self._thread = CallThread(f"agentrl-env-{name}", hung)
        self._loop = LoopThread(f"agentrl-env-{name}", hung)
        self._env: gymnasium.Env[Any, Any] | None = None
        self._made: gymnasium.Env[Any, Any] | None = None  # by a constructor, also when nobody waited for it any more

    async def reset(self, task: Task) -> Observation:
        self._env = await self._guarded("__init__", self._construct)
        options = {**task.options, "split": task.split}
        return checked_reset(self._name, await self._call("reset", seed=task.seed, options=options))

    async def tools(self) -> list[dict[str, Any]]:
        env = self._env
        assert env is not None

        def read() -> list[dict[str, Any]]:
            return list(env.get_wrapper_attr("tools")) if env.has_wrapper_attr("tools") else []

        return checked_tools(self._name, await self._guarded("tools", read))

    async def step(self, action: Message) -> Step:
        # A copy, for the conversation must reach the gateway as it was sampled, whatever the environment does to it.
        return checked_step(self._name, await self._call("step", Message(orjson.loads(orjson.dumps(action)))))

    async def close(self) -> None:
        try:
            if self._env is None:
                self._thread.afterwards(self._close_made)
            elif self._loop.abandoned:
                return
            elif not self._thread.abandoned or self._on_loop(self._env, "close"):
                await self._call("close")
            else:
                self._thread.afterwards(self._env.close)  # its call was cut short: what it holds is freed all the same
        finally:
            self._thread.close()
            self._loop.close()

    def _construct(self) -> gymnasium.Env[Any, Any]:
        self._made = self._make()
        return self._made

    def _close_made(self) -> None:
        if self._made is not None:
            self._made.close()

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        assert self._env is not None
        bound = functools.partial(getattr(self._env, method), *args, **kwargs)
        return await self._guarded(method, bound, on_loop=self._on_loop(self._env, method))

    @staticmethod
    def _on_loop(env: gymnasium.Env[Any, Any], method: str) -> bool:
        return env.is_async(method) if isinstance(env, Env) else inspect.iscoroutinefunction(getattr(env, method))

    async def _guarded(self, method: str, call: Callable[[], Any], *, on_loop: bool = False) -> Any:
        thread = self._loop if on_loop else self._thread
        try:
            return await thread.run(call, self._timeout_s, f"{self._name}.{method}")
        except (EnvironmentFault, ConfigError):
            raise
        except Exception as error:
            raise raised(self._name, method, error) from error
