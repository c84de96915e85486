"""What a gateway writes of its open sessions: whole and in order, whatever the store does meanwhile."""

from __future__ import annotations

import time

import pytest
from commit_builders import Sink, unavailable
from trajectories import two_turns

from agentrl.errors import StoreError
from agentrl.gateway.archive import Archive
from agentrl.gateway.books import Books
from agentrl.gateway.commits import GroupCommit
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.session import Session
from agentrl.gateway.sessions import SessionRegistry


def new_session() -> Session:
    return Session("s", b"k" * 32, now=99.0, metadata={"index": 1}, pins={"stop": ("x",)}, history="rerender")


async def comes_back(sink: Sink) -> Session:
    """As the next gateway of this name finds it."""
    (session,) = await Books(Archive(sink, timeout_s=10)).left_behind()
    return session


async def test_a_session_comes_back_as_it_was() -> None:
    sink = Sink()
    books, session = Books(Archive(sink, timeout_s=10)), new_session()
    await books.opened(session)
    for call in two_turns("s").build().calls:
        session.graph.add(call)
        await books.added(session)
    session.set_reward(0.5, {"right": None}, None)
    await books.rewarded(session, None)
    session.set_reward(0.25, None, "s-1")
    await books.rewarded(session, "s-1")
    back = await comes_back(sink)
    assert back.graph.calls == session.graph.calls
    assert back.graph.calls[1].reward == 0.25
    assert back.score == (0.5, {"right": None})
    kept = ("id", "key_digest", "metadata", "pins", "limits", "mode", "history", "created_at", "journaled")
    assert [getattr(back, name) for name in kept] == [getattr(session, name) for name in kept]


async def test_a_session_that_comes_back_is_not_abandoned_for_its_age() -> None:
    """It was opened long ago; what the gateway was down for and what came before are no idle time."""
    sink = Sink()
    await Books(Archive(sink, timeout_s=10)).opened(new_session())
    registry = SessionRegistry(max_sessions=8, idle_s=3600, saved_idle_s=60)
    registry.adopt(back := await comes_back(sink))
    assert back.created_at == 99.0
    assert registry.expire(time.time()) == []


async def test_a_call_that_found_no_room_is_written_with_the_next_one() -> None:
    """The journal has no hole, which could not be replayed."""
    sink = Sink()
    archive = Archive(sink, timeout_s=10)
    books, session = Books(archive), new_session()
    await books.opened(session)
    archive.commits = GroupCommit(sink, owner="gateway", timeout_s=10, max_bytes=1)
    sink.errors = [unavailable()]
    with pytest.raises(Refusal, match="the disk is full"):
        await books.rewarded(session, None)  # owed, and more than the bound
    first, second = two_turns("s").build().calls
    session.graph.add(first)
    with pytest.raises(Refusal, match="bytes wait for the store already"):
        await books.added(session)
    first.untrainable = "undelivered"
    books.changed(session, 0)
    archive.commits = GroupCommit(sink, owner="gateway", timeout_s=10)
    session.graph.add(second)
    await books.added(session)
    assert (await comes_back(sink)).graph.calls == [first, second]


async def test_a_change_is_written_before_what_comes_after_it() -> None:
    sink = Sink()
    archive = Archive(sink, timeout_s=10)
    books, session = Books(archive), new_session()
    await books.opened(session)
    session.graph.add(two_turns("s").build().calls[0])
    await books.added(session)
    session.graph.calls[0].untrainable = "undelivered"
    books.changed(session, 0)
    await archive.commits.end("s")
    assert (await comes_back(sink)).graph.calls[0].untrainable == "undelivered"


async def test_a_forgotten_session_does_not_come_back_and_a_broken_store_says_so() -> None:
    sink = Sink()
    books, session = Books(Archive(sink, timeout_s=10)), new_session()
    await books.opened(session)
    await books.forget(session)
    assert await books.left_behind() == []

    class Unreadable(Sink):
        def journal(self, owner: str) -> object:
            raise StoreError("the file is damaged")

    with pytest.raises(StoreError, match="the file is damaged"):
        await Books(Archive(Unreadable(), timeout_s=10)).left_behind()
