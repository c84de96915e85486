"""What is written to a client in one round of the event loop leaves in one system call."""

from __future__ import annotations

import asyncio
from typing import Any

from agentrl.gateway.one_write import JoinedWrites


class Recording:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("closed")
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


def joined() -> tuple[Recording, Any]:
    recording: Any = Recording()
    return recording, JoinedWrites(recording, asyncio.get_running_loop())


async def test_head_and_body_are_one_write() -> None:
    recording, transport = joined()
    transport.write(b"head ")
    transport.write(b"body")
    assert recording.calls == []
    await asyncio.sleep(0)
    assert recording.calls == [b"head body"]


async def test_events_of_later_rounds_do_not_wait_for_one_another() -> None:
    recording, transport = joined()
    for event in (b"one", b"two"):
        transport.write(event)
        await asyncio.sleep(0)
    assert recording.calls == [b"one", b"two"]


async def test_a_connection_is_closed_behind_what_was_written() -> None:
    recording, transport = joined()
    transport.write(b"last words")
    transport.close()
    await asyncio.sleep(0)
    assert recording.calls == [b"last words", "closed"]


async def test_nothing_is_written_to_a_connection_that_broke_meanwhile() -> None:
    recording, transport = joined()
    transport.write(b"too late")
    recording.closing = True
    await asyncio.sleep(0)
    assert recording.calls == []


async def test_all_else_is_the_transports() -> None:
    _, transport = joined()
    assert transport.get_extra_info("peername") == "the peername"
