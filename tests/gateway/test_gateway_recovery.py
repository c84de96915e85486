"""A gateway that was killed comes back with its sessions; none of them is lost silently."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateway_builders import END, MemorySink, always, eventually, renderer, serving, user
from trajectories import two_turns

from agentrl.engine.client import HttpEngineClient
from agentrl.errors import StoreUnavailable
from agentrl.gateway.archive import Archive
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.journal import CallAdded, Opened, Replayed, Rewarded
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.server import GatewayServer
from agentrl.store.memory import MemoryStore
from agentrl.types import JournalEntry


async def journaled(archive: Archive, session_id: str) -> Replayed:
    """A session of two calls, as it was when its gateway was killed."""
    opened = Opened(session_id=session_id, key_digest=b"k" * 32)
    calls = two_turns(session_id).build().calls
    events = [
        opened,
        CallAdded.to([], calls[0]),
        CallAdded.to(calls[:1], calls[1]),
        Rewarded(reward=0.5, components={}),
    ]
    for event in events:
        await archive.commits.append(archive.commits.entry(session_id, event))
    return Replayed(opened=opened, calls=calls, reward=0.5)


async def recovered(store: MemoryStore, **options: Any) -> list[Replayed]:
    return [replayed async for replayed in Archive(store, timeout_s=10, **options).recover()]


async def test_a_gateway_that_was_killed_comes_back_with_its_sessions() -> None:
    store = MemoryStore()
    killed = Archive(store, timeout_s=10)
    sessions = [await journaled(killed, session_id) for session_id in ("b", "a")]
    assert await recovered(store) == sessions


async def test_no_request_is_answered_before_the_sessions_are_back() -> None:
    """A client that was there first would be told that its key is unknown, and give up: SDKs retry no 401."""
    answered = threading.Event()

    class SlowToRead(MemorySink):
        def journal(self, owner: str) -> Iterator[tuple[str, list[bytes]]]:
            answered.wait(0.3)  # what answers too early does it within this
            return super().journal(owner)

    store = SlowToRead()
    async with serving(always([END])) as first, serving(always([END]), sink=(killed := MemorySink())) as died:
        session = await died.open()
        store.journaled = dict(killed.journaled)
        config = GatewayConfig(engine_urls=(first.engine.url,))
        server = GatewayServer(config, renderer=renderer(), engine_factory=HttpEngineClient, sink=store)
        starting = asyncio.create_task(server.start())
        try:
            await eventually(lambda: server.url != "")  # it listens
            async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http:
                headers = {"Authorization": f"Bearer {session.api_key}"}
                answer = await http.post("/v1/chat/completions", json={"messages": [user("q")]}, headers=headers)
                answered.set()
            assert answer.status_code == 200, answer.text
        finally:
            answered.set()
            await starting
            await server.stop()


async def test_gateways_that_share_a_store_come_back_with_their_own_sessions() -> None:
    store = MemoryStore()
    await journaled(Archive(store, timeout_s=10, owner="east"), "a")
    west = await journaled(Archive(store, timeout_s=10, owner="west"), "b")
    assert await recovered(store, owner="west") == [west]


async def test_a_session_whose_journal_is_damaged_is_reported_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    whole = await journaled(Archive(store, timeout_s=10), "whole")
    store.append([JournalEntry("torn", "gateway", b"\x93")])
    archive = Archive(store, timeout_s=10)
    assert [replayed async for replayed in archive.recover()] == [whole]
    assert archive.damaged == {"torn"}
    assert "session torn does not come back: the journal of session 'torn' is damaged" in caplog.text
    assert ("torn", [b"\x93"]) in list(store.journal("gateway"))


async def test_a_session_that_was_forgotten_does_not_come_back() -> None:
    store = MemoryStore()
    archive = Archive(store, timeout_s=10)
    await journaled(archive, "forgotten")
    kept = await journaled(archive, "kept")
    await archive.forget("forgotten")
    assert await recovered(store) == [kept]


async def test_forgetting_says_when_the_store_is_out_of_reach() -> None:
    class OutOfReach(MemoryStore):
        def forget_journal(self, session_id: str) -> None:
            raise StoreUnavailable("the disk is full")

    with pytest.raises(Refusal, match="did not forget session s: the disk is full") as refused:
        await Archive(OutOfReach(), timeout_s=10).forget("s")
    assert (refused.value.status, refused.value.code) == (503, "store_failed")
