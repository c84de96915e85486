"""An MCP server with a counter and every way to misbehave. `python mcp_counter_server.py [port]`."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("counter", log_level="CRITICAL")
count = 0
PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000049454e44ae426082")


@server.tool()
def add(amount: int) -> int:
    """Add to the counter and return it."""
    global count
    count += amount
    return count


@server.tool()
def refuse() -> str:
    """Always fails."""
    raise ToolError("not today")


@server.tool()
def die() -> str:
    """Ends the server."""
    print("goodbye", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
async def wait() -> str:
    """Never returns."""
    import anyio

    await anyio.sleep_forever()
    return "never"


@server.tool()
def spawn() -> int:
    """Starts a process that leaves this one's group; returns its id."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL).pid


@server.tool()
def picture() -> Image:
    """One pixel."""
    return Image(data=PIXEL, format="png")


@server.tool()
def pid() -> int:
    """The server's process id."""
    return os.getpid()


@server.tool()
def begin(seed: int, target: int = 5) -> str:
    """Starts a task."""
    global count
    count = seed % 2
    return f"Make the counter {target}."


@server.tool()
def grade(answer: str, target: int = 5) -> float:
    """1 when the counter and the answer are right."""
    return float(count == target and answer.strip() == str(target))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
    time.sleep(0)
