"""The environment's own process: makes it, calls it on the main thread, and answers with checked, plain values."""

from __future__ import annotations

import inspect
import logging
import random
import socket
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium
import msgspec
import numpy as np

from agentrl.env import registry
from agentrl.env.bridge import bridge
from agentrl.env.contract import checked_reset, checked_step, checked_tools, raised
from agentrl.env.isolated.wire import frame, receive
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.messages import Message
from agentrl.types import Task

log = logging.getLogger(__name__)


def serve(connection: socket.socket) -> None:
    """Answers requests in order until the worker closes the connection, or after `close`.

    A request is `{"call": name, …arguments}`; an answer `{"value": …}`, or `{"fault": {"reason", "text", "trace"}}`.
    """
    random.seed()  # forked siblings would all draw the same
    np.random.seed()
    environment = _Environment()
    while True:
        try:
            request = receive(connection)
        except (EOFError, OSError):
            return
        call = request.pop("call")
        answer = _answer(environment, call, request)
        try:
            connection.sendall(answer)
        except OSError:  # the worker has given it up in the middle of a call: nobody is left to be told
            return
        if call == "close":
            return


def _answer(environment: _Environment, call: str, arguments: dict[str, Any]) -> bytes:
    try:
        return frame({"value": getattr(environment, call)(**arguments)})
    except ConfigError as error:
        fault = {"reason": "config", "text": str(error)}
    except EnvironmentFault as error:
        fault = {"reason": error.reason, "text": str(error), "trace": _trace(error)}
    except (TypeError, ValueError) as error:  # of `frame`
        fault = {"reason": EnvironmentFault.reason, "text": f"{environment.name}.{call} gave no answer: {error}"}
    return frame({"fault": fault})


class _Environment:
    """One environment. Its methods are the requests."""

    name = "the environment"

    def __init__(self) -> None:
        self._env: gymnasium.Env[Any, Any] | None = None

    def make(self, env_id: str, kwargs: dict[str, Any]) -> None:
        self.name = env_id
        self._env = self._guarded("__init__", lambda: registry.make(env_id, **kwargs))

    def reset(self, task: dict[str, Any]) -> list[Message]:
        given = msgspec.convert(task, Task)
        options = {**given.options, "split": given.split}
        result = self._guarded("reset", lambda: self._made.reset(seed=given.seed, options=options))
        return checked_reset(self.name, result)

    def tools(self) -> list[dict[str, Any]]:
        env = self._made
        read = lambda: list(env.get_wrapper_attr("tools")) if env.has_wrapper_attr("tools") else []  # noqa: E731
        return checked_tools(self.name, self._guarded("tools", read))

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        result = self._guarded("step", lambda: self._made.step(Message(action)))
        answer: dict[str, Any] = msgspec.structs.asdict(checked_step(self.name, result))
        return answer

    def close(self) -> None:
        self._guarded("close", lambda: self._made.close())

    @property
    def _made(self) -> gymnasium.Env[Any, Any]:
        assert self._env is not None, "`make` comes first"
        return self._env

    def _guarded(self, method: str, call: Callable[[], Any]) -> Any:
        """What the call gives, an async one's result too: on a loop of this process's own (`agentrl.env.bridge`)."""
        try:
            result = call()
            return bridge(result) if inspect.iscoroutine(result) else result
        except (EnvironmentFault, ConfigError):
            raise
        except BaseException as error:
            raise raised(self.name, method, error) from error


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # a stranger's `__str__` may raise
        return ""
