"""Group commit: durable on return, many calls a transaction, each failure its own entry's, no session with a hole."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict

import pytest
from commit_builders import Sink, committing, entry, queued, refused, unavailable
from gateway_builders import eventually
from hypothesis import given
from hypothesis import strategies as st

from agentrl.gateway import commits as commits_module
from agentrl.gateway.commits import GroupCommit
from agentrl.gateway.journal import Opened, Rewarded, replay
from agentrl.gateway.refusal import Refusal


async def test_an_entry_is_in_the_store_when_append_returns() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        assert not first.done()
        sink.open.set()
        await first
        assert sink.written() == [b"first"]


async def test_what_gathers_while_one_transaction_runs_goes_into_the_next() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        more = await queued(commits, *(entry(bytes([index]), f"s{index}") for index in range(50)))
        sink.open.set()
        await asyncio.gather(first, *more)
        assert sink.batches == [[b"first"], [bytes([index]) for index in range(50)]]


async def test_a_transaction_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "MAX_BATCH", 2)
    sink = Sink()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        more = await queued(commits, entry(b"1"), entry(b"2"), entry(b"3"))
        sink.open.set()
        await asyncio.gather(first, *more)
        assert sink.batches == [[b"first"], [b"1", b"2"], [b"3"]]


async def test_a_store_out_of_reach_is_a_503_for_the_entries_of_that_transaction_alone() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        await commits.append(entry(b"before"))
        sink.errors = [unavailable()]
        assert await refused(commits.append(entry(b"during"))) == (503, "store_failed", True)
        await commits.append(entry(b"after"))


async def test_what_was_refused_for_now_is_written_ahead_of_what_comes_later() -> None:
    """A journal with a hole could not be replayed."""
    sink = Sink()
    async with committing(sink) as commits:
        sink.errors = [unavailable(), unavailable()]
        await refused(commits.append(entry(b"1")))
        await refused(commits.append(entry(b"2")))
        await commits.append(entry(b"3"))
        assert sink.written() == [b"1", b"2", b"3"]


async def test_what_was_refused_for_now_is_written_when_the_store_is_back_without_being_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits_module, "RETRY_S", 0.01)
    sink = Sink()
    async with committing(sink) as commits:
        sink.errors = [unavailable(), unavailable(), unavailable()]
        await refused(commits.append(entry(b"1")))
        await eventually(lambda: sink.written() == [b"1"])
        await eventually(lambda: commits.waiting == 0)


async def test_a_store_out_of_reach_is_not_asked_without_pause_however_much_is_owed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits_module, "MAX_BATCH", 2)
    sink = Sink()
    async with committing(sink, timeout_s=0.1) as commits:
        sink.errors = [unavailable() for _ in range(1000)]
        outcomes = await asyncio.gather(*(commits.append(entry(b"x")) for _ in range(3)), return_exceptions=True)
        assert [outcome.code for outcome in outcomes if isinstance(outcome, Refusal)] == [
            *["store_failed"] * 2,
            "store_slow",
        ]
        assert 1000 - len(sink.errors) == 1
        sink.errors = []


async def test_an_entry_that_is_refused_for_good_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        good, bad, also_good = await queued(commits, entry(b"1"), entry(b"poison", "bad"), entry(b"2"))
        sink.open.set()
        await asyncio.gather(first, good, also_good)
        assert await refused(bad) == (500, "store_refused", False)
        assert sink.written() == [b"first", b"1", b"2"]
    assert "an event of session bad is not in its journal: it cannot be stored" in caplog.text


async def test_a_fault_of_the_store_does_not_end_the_writer() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        sink.errors = [RuntimeError("a bug")]
        assert await refused(commits.append(entry(b"1"))) == (500, "store_refused", False)
        await commits.append(entry(b"2"))


async def test_a_slow_store_is_waited_for_so_long_and_no_longer() -> None:
    """The entry is written all the same, for nobody knows how far it got."""
    sink = Sink()
    async with committing(sink, timeout_s=0.05) as commits:
        assert await refused(await sink.hold(commits)) == (503, "store_slow", True)
        sink.open.set()
        await eventually(lambda: sink.written() == [b"first"])


async def test_an_entry_whose_client_is_gone_is_written() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        (gone,) = await queued(commits, entry(b"gone"))
        gone.cancel()
        sink.open.set()
        await first
        await eventually(lambda: sink.written() == [b"first", b"gone"])


async def test_entries_that_are_queued_together_are_durable_together() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        both = asyncio.create_task(commits.append(entry(b"1"), entry(b"2")))
        await eventually(lambda: commits.waiting == 3)
        sink.open.set()
        await asyncio.gather(first, both)
        assert sink.batches == [[b"first"], [b"1", b"2"]]
        assert await refused(commits.append(entry(b"3"), entry(b"poison"), entry(b"4"))) == (
            500,
            "store_refused",
            False,
        )
        assert sink.written() == [b"first", b"1", b"2", b"3", b"4"]


async def test_what_is_queued_is_written_whether_it_is_awaited_or_not() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        durable = commits.queue(entry(b"1"))
        await eventually(lambda: sink.written() == [b"1"])
        await durable


async def test_events_are_entries_of_their_gateway() -> None:
    sink = Sink()
    async with committing(sink) as commits:
        opened = Opened(session_id="s", key_digest=b"x" * 32)
        await commits.append(commits.entry("s", opened))
        await commits.append(commits.entry("s", Rewarded(reward=0.5, components={})))
        assert (replay("s", sink.written()).opened, replay("s", sink.written()).reward) == (opened, 0.5)
        with pytest.raises(Refusal) as refusal:
            commits.entry("s", Rewarded(reward=math.nan, components={}))
        assert (refusal.value.status, refusal.value.code) == (500, "store_refused")


arrivals = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=12)  # session, poisoned
turns = st.lists(st.sampled_from(["fine", "out of reach"]), max_size=12)


@given(arrivals, turns, st.lists(st.booleans(), max_size=12))
def test_whatever_fails_each_session_is_written_in_order_and_whole(
    arrivals: list[tuple[str, bool]], turns: list[str], at_once: list[bool]
) -> None:
    """… but for what is refused for good, and everybody hears of his own entry's fate."""
    logging.disable(logging.CRITICAL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commits_module, "RETRY_S", 0.0)
            asyncio.run(_arrive(arrivals, turns, at_once))
    finally:
        logging.disable(logging.NOTSET)


async def _arrive(arrivals: list[tuple[str, bool]], turns: list[str], at_once: list[bool]) -> None:
    sink = Sink()
    sink.at_once = list(at_once)
    sink.errors = [None if turn == "fine" else unavailable() for turn in turns]
    commits = GroupCommit(sink, owner="gateway", timeout_s=10)
    expected: dict[str, list[bytes]] = defaultdict(list)
    entries = []
    for number, (session_id, poisoned) in enumerate(arrivals):
        entries.append(entry(b"poison" if poisoned else bytes([number]), session_id))
        if not poisoned:
            expected[session_id].append(bytes([number]))
    outcomes = await asyncio.gather(*(commits.append(each) for each in entries), return_exceptions=True)
    sink.errors = []
    await commits.close()
    assert {session_id: sink.written(session_id) for session_id in expected} == expected
    for each, outcome in zip(entries, outcomes, strict=True):
        assert outcome is None or isinstance(outcome, Refusal)
        code = None if outcome is None else outcome.code
        assert code in ({"store_refused", "store_failed"} if each.data == b"poison" else {None, "store_failed"})
