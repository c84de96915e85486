"""Our environments for others over OpenEnv's protocol: a WebSocket is a session, and has one environment at a time."""

from __future__ import annotations

import asyncio
import functools
import hmac
import itertools
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.env import registry
from agentrl.env.threads import HungCalls
from agentrl.errors import AgentRLError
from agentrl.messages import Message
from agentrl.rollout.hosts.base import EnvHost
from agentrl.rollout.hosts.thread import ThreadHost
from agentrl.types import Task

log = logging.getLogger(__name__)

MAX_INDEX = 100_000  # of a task in its split; the tasks before it are kept
POLICY_VIOLATION = 1008  # the WebSocket's code for a connection that is not let in


class ServedAction(BaseModel):
    """An assistant message in OpenAI form."""

    model_config = ConfigDict(extra="forbid")

    content: str | None = Field(default=None, description="What the policy says")
    tool_calls: list[dict[str, Any]] = Field(default_factory=list, description="OpenAI's tool_calls")
    metadata: dict[str, Any] = Field(default_factory=dict)


class ServedObservation(BaseModel):
    """Messages that are new since the last action."""

    messages: list[dict[str, Any]] = Field(description="Chat messages in OpenAI form")
    tools: list[dict[str, Any]] = Field(default_factory=list, description="OpenAI's tools; given at reset")
    metadata: dict[str, Any] = Field(default_factory=dict, description="truncated: whether it was cut off")


class ServedReset(BaseModel):
    """What a reset may name: a task by its index in a split, or a seed and options. Others are left out."""

    seed: int | None = Field(default=None, ge=0)
    split: str = "train"
    index: int | None = Field(default=None, ge=0, lt=MAX_INDEX)
    options: dict[str, Any] = Field(default_factory=dict)
    episode_id: str | None = None


class ServedState(BaseModel):
    """What is known of a session."""

    episode_id: str | None = None
    step_count: int = 0
    env_id: str = ""
    task_id: str | None = None


def openenv_app(
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    max_sessions: int = 64,
    env_timeout_s: float = 60.0,
    idle_timeout_s: float = 600.0,
    key: str | None = None,
) -> FastAPI:
    """An ASGI application that OpenEnv's clients can drive (`GenericEnvClient(base_url=…)`).

    With a `key`, clients send it as `Authorization: Bearer …`. A session that says nothing for `idle_timeout_s`
    seconds is ended, and so is its environment. Raises ConfigError for an id that names nothing.
    """
    described = (registry.env_class(env_id).__doc__ or "").strip().partition("\n")[0]
    served = _Served(env_id, dict(env_kwargs or {}), env_timeout_s)
    app = FastAPI(title=f"{env_id} over OpenEnv's protocol", openapi_url=None)
    living = itertools.count(), set[int]()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.get("/metadata")
    async def metadata() -> dict[str, str]:
        return {"name": env_id, "description": described}

    @app.get("/schema")
    async def schema() -> dict[str, Any]:
        return {
            "action": ServedAction.model_json_schema(),
            "observation": ServedObservation.model_json_schema(),
            "state": ServedState.model_json_schema(),
        }

    @app.websocket("/ws")
    async def session(socket: WebSocket) -> None:
        if not _let_in(socket, key):
            await socket.close(POLICY_VIOLATION)
            return
        await socket.accept()
        numbers, open_now = living
        if len(open_now) >= max_sessions:
            await socket.send_json(_error(f"all of {max_sessions} sessions are in use", "CAPACITY_REACHED"))
            await socket.close()
            return
        number = next(numbers)
        open_now.add(number)
        try:
            await _Session(served, socket, idle_timeout_s).run()
        finally:
            open_now.discard(number)

    return app


def _let_in(socket: WebSocket, key: str | None) -> bool:
    """Web pages may not connect, unless the server is their own: any page can reach a loopback address."""
    origin = socket.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != socket.headers.get("host"):
        return False
    given = socket.headers.get("authorization", "").removeprefix("Bearer ")
    return key is None or hmac.compare_digest(given.encode(), key.encode())


def _error(message: str, code: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


class _Served:
    """The environment that is served, and its tasks by split and index."""

    def __init__(self, env_id: str, env_kwargs: dict[str, Any], timeout_s: float) -> None:
        self.env_id = env_id
        self._make: Callable[[], Any] = functools.partial(registry.make, env_id, **env_kwargs)
        self._env_kwargs = env_kwargs
        self._timeout_s = timeout_s
        self._hung = HungCalls()
        self._tasks: dict[str, tuple[Iterator[Task], list[Task]]] = {}
        self._listing = asyncio.Lock()

    def host(self) -> EnvHost:
        return ThreadHost(self._make, name=self.env_id, timeout_s=self._timeout_s, hung=self._hung)

    async def task(self, wanted: ServedReset) -> Task:
        """Raises AgentRLError when the split has no task of that index."""
        if wanted.index is None:
            seed = secrets.randbits(31) if wanted.seed is None else wanted.seed
            return Task(
                id=f"seed-{seed}", env_id=self.env_id, seed=seed, split=wanted.split, options=dict(wanted.options)
            )
        async with self._listing:
            return await asyncio.to_thread(self._nth, wanted.split, wanted.index)

    def _nth(self, split: str, index: int) -> Task:
        if split not in self._tasks:
            self._tasks[split] = registry.tasks(self.env_id, split=split, seed=0, env_kwargs=self._env_kwargs), []
        source, known = self._tasks[split]
        known.extend(itertools.islice(source, max(0, index + 1 - len(known))))
        if index >= len(known):
            raise AgentRLError(f"split {split!r} of {self.env_id} has {len(known)} tasks, and none of index {index}")
        return known[index]


class _Session:
    def __init__(self, served: _Served, socket: WebSocket, idle_timeout_s: float) -> None:
        self._served = served
        self._socket = socket
        self._idle_timeout_s = idle_timeout_s
        self._host: EnvHost | None = None
        self._state = ServedState(env_id=served.env_id)

    async def run(self) -> None:
        try:
            while True:
                async with asyncio.timeout(self._idle_timeout_s):
                    raw = await self._received()
                answer = await self._answer(raw)
                if answer is None:
                    break
                await self._socket.send_json(answer)
            await self._socket.close()
        except TimeoutError:
            await self._socket.close(reason="idle")
        except WebSocketDisconnect:
            pass
        finally:
            await self._end()

    async def _received(self) -> Any:
        """The next message; what is no JSON is None."""
        try:
            return await self._socket.receive_json()
        except (ValueError, KeyError):  # KeyError: a binary frame
            return None

    async def _answer(self, raw: Any) -> dict[str, Any] | None:
        """What goes back; None ends the session."""
        if not isinstance(raw, dict):
            return _error("a message is a JSON object", "INVALID_JSON")
        kind, data = raw.get("type"), raw.get("data") or {}
        try:
            if kind == "reset":
                return await self._reset(ServedReset.model_validate(data))
            if kind == "step":
                return await self._step(ServedAction.model_validate(data))
        except ValidationError as error:
            faults = [{"loc": fault["loc"], "msg": fault["msg"], "type": fault["type"]} for fault in error.errors()]
            return _error("Invalid message", "VALIDATION_ERROR", errors=faults)
        except AgentRLError as error:
            await self._end()
            return _error(str(error), "EXECUTION_ERROR")
        if kind == "state":
            return {"type": "state", "data": self._state.model_dump()}
        return None if kind == "close" else _error(f"Unknown message type: {kind}", "UNKNOWN_TYPE")

    async def _reset(self, wanted: ServedReset) -> dict[str, Any]:
        await self._end()
        task = await self._served.task(wanted)
        self._state = ServedState(
            episode_id=wanted.episode_id or secrets.token_hex(8), env_id=self._served.env_id, task_id=task.id
        )
        self._host = self._served.host()
        messages = await self._host.reset(task)
        return _observation(messages, tools=await self._host.tools())

    async def _step(self, action: ServedAction) -> dict[str, Any]:
        if self._host is None:
            raise AgentRLError("there is no episode; reset first")
        message = Message(role="assistant", content=action.content)
        if action.tool_calls:
            message["tool_calls"] = action.tool_calls
        step = await self._host.step(message)
        self._state.step_count += 1
        done = step.terminated or step.truncated
        if done:
            await self._end()
        truncated = {"truncated": True} if step.truncated and not step.terminated else {}
        return _observation(step.observation, reward=step.reward, done=done, metadata=truncated)

    async def _end(self) -> None:
        """Frees the environment. Its own faults are told in the log: there is nobody to answer."""
        host, self._host = self._host, None
        if host is not None:
            try:
                await host.close()
            except AgentRLError as error:
                log.warning("closing %s: %s", self._served.env_id, error)


def _observation(
    messages: list[Message],
    *,
    tools: list[dict[str, Any]] | None = None,
    reward: float | None = None,
    done: bool = False,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    observation = ServedObservation(messages=list(messages), tools=tools or [], metadata=metadata or {}).model_dump()
    data = {"observation": observation, "reward": reward, "done": done}
    return {"type": "observation", "data": {**data, "metadata": metadata} if metadata else data}
