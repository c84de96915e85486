"""MCP servers as tools: the policy calls what they offer, and its last message is the answer."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from agentrl.env.adapters.mcp_server import CLOSE_S, McpServer, McpServerConfig, content_of, load_mcp
from agentrl.env.adapters.tool_loop import Content, ToolLoop, openai_tool
from agentrl.env.base import ResetResult
from agentrl.env.tool import ToolError
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.messages import Message, system, user


class MCP(ToolLoop):
    """`servers` are tables as `McpServerConfig` describes: a command, or a url.

    A task's options give the `prompt`, and perhaps the `answer`, which the last message is compared with; without an
    `answer` the reward is missing, for a reward service to give. A server that keeps state itself may do both with
    tools that the policy is not offered: `reset_tool` is called first, with what it takes of the task's options and
    its seed, and may return the prompt; `score_tool` is called last, with the final `answer` if it takes one, and
    returns the reward.

    Each episode has servers of its own, unless they are `shared`: then one of each serves every episode of a worker.
    A failing tool is told to the policy, and so is one that takes longer than `call_timeout_s`; a server that dies
    fails the episode.
    """

    def __init__(
        self,
        servers: Sequence[dict[str, Any]] | dict[str, Any],
        *,
        prompt: str | None = None,
        instructions: str | None = None,
        reset_tool: str | None = None,
        score_tool: str | None = None,
        hidden: Sequence[str] = (),
        shared: bool = False,
        call_timeout_s: float = 30.0,
        start_timeout_s: float = 30.0,
        max_rounds: int = 32,
    ) -> None:
        load_mcp()
        tables = [servers] if isinstance(servers, dict) else servers
        try:
            self._configs = [McpServerConfig.model_validate(table) for table in tables]
        except ValidationError as error:
            raise ConfigError(f"servers of an MCP environment: {error.errors()[0]['msg']}") from None
        if not self._configs:
            raise ConfigError("an MCP environment has no servers; give at least one")
        self._prompt = prompt
        self._instructions = instructions
        self._reset_tool = reset_tool
        self._score_tool = score_tool
        self._hidden = {*hidden, reset_tool, score_tool} - {None}
        self._shared = shared
        self._call_timeout_s = call_timeout_s
        self._start_timeout_s = start_timeout_s
        self.max_rounds = max_rounds
        self._servers: list[McpServer] = []
        self._home: dict[str, McpServer] = {}  # by tool
        self._described: dict[str, dict[str, Any]] = {}  # JSON schemas of arguments, by tool
        self._options: dict[str, Any] = {}

    @classmethod
    def placed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        servers = options.get("servers", [])
        tables = [servers] if isinstance(servers, dict) else servers
        return {**options, "servers": [_placed(table) for table in tables]}

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        super().reset(seed=seed)
        self.begin()
        self._options = dict(options or {})
        if self._servers and not self._shared:
            await self.close()
        if not self._servers:
            await self._connect()
        said = ""
        if self._reset_tool is not None:
            drawn = int(self.np_random.integers(2**31)) if seed is None else seed
            said = str(await self._own_call(self._reset_tool, {"seed": drawn, **self._options}, text=True))
        prompt = self._options.get("prompt") or self._prompt or said
        if not prompt:
            raise ConfigError(
                "an MCP task has no prompt; give it in the rows of environment.train_tasks, as the option `prompt`, or "
                "from `reset_tool`"
            )
        asked = user(prompt)
        return [system(self._instructions), asked] if self._instructions else [asked], {}

    async def call(self, name: str, arguments: dict[str, Any]) -> Content:
        result = await self._home[name].call(name, arguments, self._call_timeout_s)
        content = content_of(result)
        if result.is_error:
            raise ToolError(content if isinstance(content, str) else str(content))
        return content

    async def score(self, message: Message) -> float | None:
        if self._score_tool is not None:
            return _number(await self._own_call(self._score_tool, {**self._options, "answer": message.text}))
        if "answer" in self._options:
            return float(message.text.strip() == str(self._options["answer"]).strip())
        return None

    async def close(self) -> None:
        servers, self._servers = self._servers, []
        if not self._shared:
            await asyncio.gather(*(server.close() for server in servers))

    async def _connect(self) -> None:
        for config in self._configs:
            if self._shared:
                self._servers.append(await _SHARED.server(config, self._start_timeout_s))
            else:
                self._servers.append(McpServer(config))  # before it starts, so that it is closed whatever comes
                await self._servers[-1].start(self._start_timeout_s)
        self._home, self._described, self.schemas = {}, {}, []
        for config, server in zip(self._configs, self._servers, strict=True):
            for tool in await server.tools(self._start_timeout_s):
                if tool.name in self._home:
                    raise ConfigError(f"two MCP servers have a tool called {tool.name!r}, the second being {config}")
                self._home[tool.name] = server
                self._described[tool.name] = tool.input_schema
                if tool.name not in self._hidden:
                    self.schemas = [*self.schemas, openai_tool(tool.name, tool.description, tool.input_schema)]
        for name in self._hidden - self._home.keys():
            raise ConfigError(f"no MCP server has a tool called {name!r}; there are {', '.join(self._home) or 'none'}")

    async def _own_call(self, name: str, offered: dict[str, Any], *, text: bool = False) -> Any:
        """A call that is the environment's and not the policy's, with what the tool takes of the offered arguments."""
        takes = self._described[name].get("properties", {})
        arguments = {key: value for key, value in offered.items() if key in takes and value is not None}
        try:
            result = await self._home[name].call(name, arguments, self._call_timeout_s)
        except ToolError as error:
            raise EnvironmentFault(f"the MCP tool {name} failed: {error}") from error
        if result.is_error:
            raise EnvironmentFault(f"the MCP tool {name} failed: {content_of(result)}")
        if text or result.structured_content is None:
            return content_of(result)
        found = result.structured_content
        return found["result"] if isinstance(found, dict) and set(found) == {"result"} else found


def _placed(table: Any) -> Any:
    """A command runs where the run was started, unless it says where."""
    if not isinstance(table, dict) or not table.get("command"):
        return table
    return {**table, "cwd": os.path.abspath(table.get("cwd") or ".")}


def _number(value: Any) -> float | None:
    if isinstance(value, dict):
        value = value.get("reward")
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(f"the MCP score tool returned {value!r:.200}; it returns a number, or null") from error


class _SharedServers:
    """One server of each configuration for this process, on a loop of their own; a dead one is replaced when needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Lock | None = None
        self._servers: dict[str, McpServer] = {}

    async def server(self, config: McpServerConfig, timeout_s: float) -> McpServer:
        work = self._server(config, timeout_s)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running_loop()))

    async def _server(self, config: McpServerConfig, timeout_s: float) -> McpServer:
        if self._starting is None:
            self._starting = asyncio.Lock()
        key = config.model_dump_json()
        async with self._starting:
            server = self._servers.get(key)
            if server is None or server.lost:
                if server is not None:
                    await server.close()
                server = McpServer(config)
                await server.start(timeout_s)
                self._servers[key] = server
            return server

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():  # a forked child has the loop without its thread, and the servers are its parent's
            self.__init__()  # type: ignore[misc]
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="agentrl-mcp-servers", daemon=True).start()
                atexit.register(self.close)
            return self._loop

    def close(self) -> None:
        """Ends them all. Later environments start new ones."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                return
            closing = [
                asyncio.run_coroutine_threadsafe(server.close(), self._loop) for server in self._servers.values()
            ]
            for future in closing:
                with contextlib.suppress(Exception):
                    future.result(2 * CLOSE_S)
            self._servers = {}


_SHARED = _SharedServers()
