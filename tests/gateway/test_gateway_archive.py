"""Sessions and the store: saved once, scored at any time, found again after memory has let go of them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from gateway_builders import END, MemorySink, Opened, Served, always, eventually, letters, serving, user

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.gateway.journal import Opened as JournaledOpening
from agentrl.gateway.journal import encode
from agentrl.store.memory import MemoryStore
from agentrl.types import JournalEntry, Trajectory

HELLO = [*letters("hello"), END]


async def finished(served: Served, session_id: str = "s") -> Opened:
    session = await served.open(session_id=session_id)
    await session.chat([user("q")])
    await served.finish(session, stop_reason="done")
    return session


async def pass_time(served: Served, seconds: float) -> None:
    await served.server.gateway.expire(time.time() + seconds)


async def check_that_the_store_answers_for(session: Opened, served: Served, store: MemoryStore) -> None:
    url = f"/sessions/{session.id}"
    assert (await served.http.post(f"{url}/reward", json={"reward": 0.5, "components": {"a": 1}})).status_code == 200
    assert (store.get(session.id).reward, store.get(session.id).components) == (0.5, {"a": 1.0})
    trajectory = await served.trajectory(session)
    assert (trajectory["reward"], [call["token_ids"] for call in trajectory["calls"]]) == (0.5, [HELLO])
    summary = await served.finish(session, stop_reason="late")
    assert (summary["stop_reason"], summary["trained_tokens"]) == ("done", 6)
    call_reward = await served.http.post(
        f"{url}/reward", json={"reward": 1, "call_id": trajectory["calls"][0]["call_id"]}
    )
    assert call_reward.status_code == 409
    by_admin = await served.http.post(f"{url}/v1/chat/completions", json={"messages": [user("q")]})
    assert (by_admin.status_code, by_admin.json()["error"]["code"]) == (409, "session_sealed")


async def test_a_saved_session_answers_to_its_key_and_the_admin_when_its_tokens_have_left_memory() -> None:
    store = MemoryStore()
    async with serving(always(HELLO), sink=store) as served:
        session = await finished(served)
        await pass_time(served, 61)
        assert served.server.gateway.sessions.get("s").released
        await check_that_the_store_answers_for(session, served, store)
        response = await session.post(messages=[user("q")])
        assert (response.status_code, response.json()["error"]["code"]) == (409, "session_sealed")
        headers = {"Authorization": f"Bearer {session.api_key}"}
        rewarded = await served.http.post("/sessions/s/reward", json={"reward": 1.0}, headers=headers)
        assert (rewarded.status_code, store.get("s").reward) == (200, 1.0)


async def test_the_admin_finds_a_session_as_long_as_the_store_has_it() -> None:
    store = MemoryStore()
    async with serving(always(HELLO), sink=store) as served:
        session = await finished(served)
        await pass_time(served, 3601)
        assert "s" not in served.server.gateway.sessions
        await check_that_the_store_answers_for(session, served, store)
        assert (await session.post(messages=[user("q")])).status_code == 401
        assert (await served.http.get("/sessions/nobody/trajectory")).status_code == 404


async def test_an_id_that_the_store_holds_is_taken() -> None:
    async with serving(always(HELLO), sink=MemoryStore()) as served:
        session = await finished(served)
        await served.http.delete(f"/sessions/{session.id}")
        response = await served.http.post("/sessions", json={"session_id": session.id})
        assert (response.status_code, response.json()["error"]["param"]) == (409, "session_id")
        assert "s" not in served.server.gateway.sessions


class Failing(MemorySink):
    def __init__(self, error: StoreError) -> None:
        super().__init__()
        self.error: StoreError | None = error

    def save(self, trajectory: Trajectory) -> None:
        if self.error is not None:
            raise self.error
        super().save(trajectory)


async def test_a_store_that_is_out_of_reach_is_a_503_and_finish_can_be_tried_again() -> None:
    sink = Failing(StoreUnavailable("the disk is full"))
    async with serving(always(HELLO), sink=sink) as served:
        session = await served.open()
        response = await served.http.post(f"/sessions/{session.id}/finish", json={})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "store_failed")
        assert response.headers["retry-after"] == "5"
        sink.error = None
        await served.finish(session)
        assert list(sink.saved) == [session.id]


async def test_a_trajectory_that_the_store_refuses_for_good_is_not_to_be_sent_again() -> None:
    async with serving(always(HELLO), sink=Failing(StoreError("it cannot be stored"))) as served:
        session = await served.open()
        response = await served.http.post(f"/sessions/{session.id}/finish", json={})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "store_refused")
        assert response.headers["x-should-retry"] == "false"
        assert "it cannot be stored" in response.json()["error"]["message"]


class Slow(MemorySink):
    """Saves when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_save = threading.Event()

    def save(self, trajectory: Trajectory) -> None:
        assert self.may_save.wait(10)
        super().save(trajectory)


async def test_a_reward_that_comes_while_the_store_is_slow_reaches_it() -> None:
    sink = Slow()
    async with serving(always(HELLO), sink=sink, save_timeout_s=0.05) as served:
        session = await served.open()
        response = await served.http.post(f"/sessions/{session.id}/finish", json={})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "store_slow")
        rewarded = await served.http.post(f"/sessions/{session.id}/reward", json={"reward": 1.0})
        assert rewarded.status_code == 200
        sink.may_save.set()
        await eventually(lambda: sink.rewards == [(session.id, 1.0, {})])
        assert sink.saved[session.id].reward is None  # what was saved first
        await served.finish(session)
        assert len(sink.rewards) == 1


async def test_what_the_store_is_being_given_does_not_change_meanwhile() -> None:
    sink = Slow()
    async with serving(always(HELLO), sink=sink, save_timeout_s=0.2) as served:
        session = await served.open(session_id="s")
        answer = await session.chat([user("q")])
        assert (await served.http.post("/sessions/s/finish", json={})).status_code == 503
        assert served.server.gateway.sessions.get("s").set_delivered([answer["id"]], False) == []
        sink.may_save.set()
        await eventually(lambda: "s" in sink.saved)
        await served.finish(session)
        assert [call.untrainable for call in sink.saved["s"].calls] == [None]


# Sessions that nobody finishes (case 78)


def abandoned(served: Served, outcome: str) -> float | None:
    registry = served.server.gateway.metrics.registry
    return registry.get_sample_value("agentrl_gateway_sessions_abandoned_total", {"outcome": outcome})


async def opened(served: Served, session_id: str, *, called: bool = True, **body: Any) -> Opened:
    session = await served.open(session_id=session_id, **body)
    if called:
        await session.chat([user("q")])
    return session


async def test_what_an_abandoned_train_session_sampled_is_saved_and_counted() -> None:
    store = MemoryStore()
    async with serving(always(HELLO), sink=store) as served:
        await opened(served, "train")
        await opened(served, "eval", mode="eval")
        await opened(served, "unused", called=False)
        await pass_time(served, 3601)
        [trajectory] = store.iterate()
        assert (trajectory.session_id, trajectory.stop_reason) == ("train", "abandoned")
        assert [sum(row.loss_mask) for row in trajectory.rows] == [6]
        assert [session.id for session in served.server.gateway.sessions] == ["train"]
        assert (abandoned(served, "saved"), abandoned(served, "empty")) == (1.0, 2.0)


async def test_an_abandoned_session_stays_until_the_store_takes_it_or_refuses_it_for_good() -> None:
    sink = Failing(StoreUnavailable("the disk is full"))
    async with serving(always(HELLO), sink=sink) as served:
        await opened(served, "a")
        await pass_time(served, 3601)
        assert "a" in served.server.gateway.sessions
        sink.error = StoreError("it cannot be stored")
        await pass_time(served, 2 * 3601)
        assert "a" not in served.server.gateway.sessions
        assert (abandoned(served, "saved"), abandoned(served, "lost")) == (None, 1.0)


async def test_a_store_out_of_reach_does_not_end_the_expiry_of_sessions(caplog: pytest.LogCaptureFixture) -> None:
    class OutOfReach(MemorySink):
        def forget_journal(self, session_id: str) -> None:
            raise StoreUnavailable("the disk is full")

    async with serving(always(HELLO), sink=OutOfReach()) as served:
        for session_id in ("a", "b"):
            await opened(served, session_id, called=False)
        await pass_time(served, 3601)
        assert list(served.server.gateway.sessions) == []
        assert "the journal of abandoned session b stays" in caplog.text


async def test_a_session_that_came_back_is_idle_from_then_on() -> None:
    store = MemoryStore()
    old = JournaledOpening(session_id="s", key_digest=b"k" * 32, created_at=time.time() - 10_000)
    store.append([JournalEntry("s", "gateway", encode(old))])
    async with serving(always(HELLO), sink=store) as served:
        await pass_time(served, 3599)
        assert "s" in served.server.gateway.sessions
        await pass_time(served, 3700)
        assert "s" not in served.server.gateway.sessions


async def test_stopping_the_server_saves_what_open_sessions_sampled() -> None:
    store = MemoryStore()
    async with serving(always(HELLO), sink=store) as served:
        await opened(served, "a")
    assert [(trajectory.session_id, trajectory.stop_reason) for trajectory in store.iterate()] == [("a", "abandoned")]


async def test_a_store_that_hangs_does_not_keep_the_server_from_stopping(monkeypatch: Any) -> None:
    monkeypatch.setattr("agentrl.gateway.gateway.CLOSE_S", 0.05)
    sink = Slow()
    async with asyncio.timeout(20), serving(always(HELLO), sink=sink) as served:
        await opened(served, "a")
    assert sink.saved == {}
    sink.may_save.set()
