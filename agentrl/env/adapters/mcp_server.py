"""A connection to one MCP server: started, asked, and ended with every process that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from pydantic import Field, model_validator

from agentrl.env.adapters.imports import package
from agentrl.env.adapters.tool_loop import Content
from agentrl.env.process import TAG, kill_tagged
from agentrl.env.tool import ToolError
from agentrl.errors import EnvironmentFault
from agentrl.section import Section

T = TypeVar("T")

CLOSE_S = 10.0  # mcp asks, terminates and kills, each with a limit of its own; this is past their sum
MAX_PAGES = 100  # of a list of tools
_LAST_WORDS = 2000  # bytes of a server's stderr that an error shows
_CONNECTION_CLOSED, _REQUEST_TIMEOUT = -32000, -32001  # the codes of mcp's MCPError that no server sends


class McpServerConfig(Section):
    """One server: a command that speaks MCP on its standard input and output, or the URL of one (streamable HTTP)."""

    command: list[str] = Field(default_factory=list)
    """The program and its arguments, run without a shell; `python` is the one that runs agentrl."""

    env: dict[str, str] = Field(default_factory=dict)
    """Variables of the command, beside the few that MCP's own client passes on (HOME, PATH, …)."""

    cwd: str | None = None
    """The directory that the command runs in."""

    url: str | None = None
    """Such as `http://127.0.0.1:8000/mcp`."""

    header_env: dict[str, str] = Field(default_factory=dict)
    """HTTP headers by the names of the environment variables that hold them, so that no key is in a run file."""

    @model_validator(mode="after")
    def _one_way_to_it(self) -> McpServerConfig:
        if bool(self.command) == (self.url is not None):
            raise ValueError("an MCP server has either a command or a url; give one of them")
        missing = [variable for variable in self.header_env.values() if variable not in os.environ]
        if missing:
            raise ValueError(f"header_env names {missing}, which the environment does not have; set them")
        return self

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


def load_mcp() -> Any:
    """The package, with what it would import at the first call. Half a second, so not on an event loop."""
    mcp = package("mcp", extra="mcp")
    for module in ("mcp.client.streamable_http", "mcp.client.stdio", "httpx2", "jsonschema"):
        package(module, extra="mcp")
    return mcp


class McpServer:
    """Belongs to the event loop that `start` ran on; its methods may be awaited on any other loop as well."""

    def __init__(self, config: McpServerConfig) -> None:
        self._config = config
        self._tag = secrets.token_hex(8)
        self._stderr = _Tail()
        self._client: Any = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._serving: asyncio.Task[None] | None = None
        self.lost = False

    async def start(self, timeout_s: float) -> None:
        """Raises EnvironmentFault when the server is not there, dies, or is not ready in time."""
        mcp = load_mcp()
        self._home = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        ready: asyncio.Future[None] = self._home.create_future()
        self._serving = asyncio.create_task(self._serve(mcp, ready, self._stop))
        try:
            async with asyncio.timeout(timeout_s):
                await ready
        except TimeoutError:
            await self.close()
            raise self._fault(f"was not ready within {timeout_s:g} s") from None
        except Exception as error:
            await self.close()
            raise self._fault(f"cannot be used: {_told(error)}") from error
        except BaseException:
            await self.close()
            raise

    async def tools(self, timeout_s: float) -> list[Any]:
        """mcp's Tool objects. Raises EnvironmentFault."""
        return await self._at_home(self._tools(timeout_s))

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """mcp's CallToolResult. Raises ToolError for what the policy may know, EnvironmentFault for a dead server."""
        return await self._at_home(self._call(name, arguments, timeout_s))

    async def close(self) -> None:
        """Ends the server and all that it started. Again, it does nothing."""
        await self._at_home(self._close())

    async def _serve(self, mcp: Any, ready: asyncio.Future[None], stop: asyncio.Event) -> None:
        """Owns the connection: mcp's scopes have to be left in the task that entered them."""
        try:
            async with self._target(mcp) as target, mcp.Client(target) as client:
                self._client = client
                ready.set_result(None)
                await stop.wait()
        except Exception as error:
            self.lost = True
            if not ready.done():
                ready.set_exception(error)
        finally:
            self._client = None
            kill_tagged(self._tag)  # mcp has ended the server and its process group; this is what left the group

    @contextlib.asynccontextmanager
    async def _target(self, mcp: Any) -> AsyncIterator[Any]:
        config = self._config
        if config.url is not None:
            transport = package("mcp.client.streamable_http", extra="mcp")
            headers = {name: os.environ[variable] for name, variable in config.header_env.items()}
            async with package("httpx2", extra="mcp").AsyncClient(headers=headers, timeout=None) as http:
                yield transport.streamable_http_client(config.url, http_client=http)
            return
        command, *args = config.command
        run_tags = {name: value for name, value in os.environ.items() if name.startswith("AGENTRL_") and "_TAG" in name}
        parameters = mcp.StdioServerParameters(
            command=sys.executable if command == "python" else command,
            args=args,
            env={**run_tags, **config.env, TAG: self._tag},
            cwd=config.cwd,
        )
        async with self._stderr.pipe() as errlog:
            yield package("mcp.client.stdio", extra="mcp").stdio_client(parameters, errlog=errlog)

    async def _tools(self, timeout_s: float) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(MAX_PAGES):
                    page = await self._living().list_tools(cursor=cursor)
                    found += page.tools
                    cursor = page.next_cursor
                    if cursor is None:
                        return found
        except TimeoutError:
            raise self._fault(f"did not list its tools within {timeout_s:g} s") from None
        except EnvironmentFault:
            raise
        except Exception as error:
            raise self._fault(f"did not list its tools: {_told(error)}") from error
        raise self._fault(f"lists its tools on more than {MAX_PAGES} pages")

    async def _call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        client = self._living()
        mcp = package("mcp", extra="mcp")
        try:
            async with asyncio.timeout(timeout_s + 1.0):  # mcp's own comes first, and cancels the call at the server
                return await client.call_tool(name, arguments, read_timeout_seconds=timeout_s)
        except mcp.MCPError as error:
            if error.code == _CONNECTION_CLOSED:
                self.lost = True
                raise self._fault(f"was lost in a call of {name}") from error
            if error.code == _REQUEST_TIMEOUT:
                raise ToolError(f"{name} took longer than {timeout_s:g} s") from None
            raise ToolError(error.message) from error
        except TimeoutError:
            raise ToolError(f"{name} took longer than {timeout_s:g} s") from None
        except Exception as error:  # the transport's own, and results that break the protocol
            self.lost = True
            raise self._fault(f"failed in a call of {name}: {_told(error)}") from error

    def _living(self) -> Any:
        if self._client is None:
            raise self._fault("is not connected")
        return self._client

    async def _close(self) -> None:
        if self._serving is None:
            return
        assert self._stop is not None
        self._stop.set()
        done, _ = await asyncio.wait({self._serving}, timeout=CLOSE_S if self._client is not None else 0)
        if not done:
            self._serving.cancel()
            await asyncio.wait({self._serving}, timeout=CLOSE_S)

    async def _at_home(self, work: Coroutine[Any, Any, T]) -> T:
        if self._home is None or self._home is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._home))

    def _fault(self, what: str) -> EnvironmentFault:
        words = self._stderr.text()
        return EnvironmentFault(
            f"the MCP server {self._config} {what}" + (f"; its last words: {words}" if words else "")
        )


class _Tail(asyncio.Protocol):
    """The last bytes of what comes through a pipe."""

    def __init__(self) -> None:
        self._kept = b""

    def data_received(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-_LAST_WORDS:]

    def text(self) -> str:
        return self._kept.decode(errors="replace").strip()

    @contextlib.asynccontextmanager
    async def pipe(self) -> AsyncIterator[Any]:
        """The end to write to."""
        read, write = os.pipe()
        reading, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, os.fdopen(read, "rb"))
        try:
            with os.fdopen(write, "w") as end:
                yield end
        finally:
            reading.close()


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def content_of(result: Any) -> Content:
    """A tool's result as a tool message's content: text, or parts where there are images."""
    parts: list[dict[str, Any]] = []
    for block in result.content:
        if block.type == "text":
            parts.append({"type": "text", "text": block.text})
        elif block.type == "image":
            parts.append({"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}})
        elif block.type == "resource" and hasattr(block.resource, "text"):
            parts.append({"type": "text", "text": block.resource.text})
        else:
            parts.append({"type": "text", "text": block.model_dump_json(exclude_none=True)})
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts
