"""An MCP server with a catalogue. The policy may search it; `ask` and `grade` are the environment's own."""

from __future__ import annotations

import random

from mcp.server import MCPServer

SHELVES = {"rivers": 3, "stars": 7, "bread": 2, "knots": 9, "whales": 5}

server = MCPServer("library", log_level="ERROR")
asked = ""


@server.tool()
def find(topic: str) -> str:
    """Say on which shelf the books about a topic are."""
    if topic not in SHELVES:
        return f"There are no books about {topic}."
    return f"Books about {topic} are on shelf {SHELVES[topic]}."


@server.tool()
def ask(seed: int) -> str:
    """Begin a task: the question for the policy."""
    global asked
    asked = random.Random(seed).choice(sorted(SHELVES))
    return f"On which shelf are the books about {asked}? End with the number."


@server.tool()
def grade(answer: str) -> float:
    """The reward: 1 for the right shelf."""
    return float(answer.split()[-1:] == [str(SHELVES[asked])])


if __name__ == "__main__":
    server.run("stdio")
