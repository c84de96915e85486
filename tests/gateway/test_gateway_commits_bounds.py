"""Group commit has a bound, and an end: of what waits, of a session, of the gateway."""

from __future__ import annotations

import asyncio

import pytest
from commit_builders import Sink, committing, entry, queued, refused, unavailable
from gateway_builders import eventually

from agentrl.gateway import commits as commits_module
from agentrl.gateway.refusal import Refusal


async def test_what_waits_is_bounded_by_its_bytes() -> None:
    sink = Sink()
    async with committing(sink, max_bytes=10) as commits:
        first = await sink.hold(commits)  # 5 bytes
        (second,) = await queued(commits, entry(b"12345"))
        with pytest.raises(Refusal, match="10 bytes wait for the store already") as refusal:
            commits.queue(entry(b"6"))
        assert (refusal.value.status, refusal.value.code, refusal.value.retry_after) == (503, "store_slow", 5)
        assert commits.waiting == 2
        sink.open.set()
        await asyncio.gather(first, second)
        await commits.append(entry(b"7"))
        assert sink.written() == [b"first", b"12345", b"7"]


async def test_an_entry_larger_than_the_bound_is_taken_when_nothing_waits() -> None:
    sink = Sink()
    async with committing(sink, max_bytes=10) as commits:
        await commits.append(entry(b"long" * 10))
        assert sink.written() == [b"long" * 10]


async def test_what_is_owed_is_bounded_and_makes_room_when_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "RETRY_S", 0.01)
    sink = Sink()
    async with committing(sink, max_bytes=1) as commits:
        sink.errors = [unavailable()] * 1_000_000
        assert (await refused(commits.append(entry(b"1"))))[1] == "store_failed"
        assert (await refused(commits.append(entry(b"2"))))[1] == "store_slow"
        sink.errors = []
        await eventually(lambda: commits.waiting == 0)
        await commits.append(entry(b"3"))
        assert sink.written() == [b"1", b"3"]


async def test_closing_writes_what_waits_and_refuses_what_comes_later() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        (second,) = await queued(commits, entry(b"second"))
        closing = asyncio.create_task(commits.close())
        sink.open.set()
        await closing
        await asyncio.gather(first, second)
        assert sink.written() == [b"first", b"second"]
        assert await refused(commits.append(entry(b"third"))) == (503, "store_slow", True)


async def test_closing_does_not_wait_for_a_store_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()
    async with committing(sink, timeout_s=0.05) as commits:
        first = await sink.hold(commits)
        await refused(first)
        async with asyncio.timeout(10):
            await commits.close()
    assert "1 events were not journaled when the gateway stopped" in caplog.text


async def test_nothing_of_a_session_is_written_after_its_end() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        await queued(commits, entry(b"other", "other"))
        ending = asyncio.create_task(commits.end("s"))
        await asyncio.sleep(0)
        assert not ending.done()  # its entry is under way
        sink.errors = [unavailable()]
        sink.open.set()
        await refused(first)
        await ending
        await commits.append(entry(b"other", "other"))
        assert sink.written("s") == []
        assert sink.written("other") == [b"other", b"other"]


async def test_what_is_owed_of_a_session_is_dropped_at_its_end() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        sink.errors = [unavailable(), unavailable()]
        await refused(commits.append(entry(b"1", "ended")))
        await refused(commits.append(entry(b"1", "other")))
        await commits.end("ended")
        await commits.append(entry(b"2", "other"))
        assert (sink.written("ended"), sink.written("other")) == ([], [b"1", b"2"])
        assert commits.waiting == 0


async def test_the_end_of_a_session_is_waited_for_so_long_and_no_longer() -> None:
    sink = Sink()
    async with committing(sink, timeout_s=0.05) as commits:
        first = await sink.hold(commits)
        assert await refused(commits.end("s")) == (503, "store_slow", True)
        await refused(first)
