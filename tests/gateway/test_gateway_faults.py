"""Engines that die or lie, clients that leave, limits that strike in the middle of a call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from gateway_builders import END, always, continues, eventually, ids, letters, renderer, serving, user

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import Fault
from agentrl.errors import ConfigError, EngineError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.server import GatewayServer
from agentrl.types import TokenChunk


async def test_a_call_whose_engine_dies_goes_on_elsewhere_from_the_tokens_so_far() -> None:
    async with serving(*[continues([*letters("hello"), END])] * 2) as served:
        served.engine.fail_next(Fault(kind="die", after=3))
        session = await served.open()
        answer = await session.chat([user("q")])
        assert answer["choices"][0]["message"]["content"] == "hello"
        first, second = (engine.requests[0] for engine in served.engines)
        assert second.prompt_ids == [*first.prompt_ids, *letters("hel")]
        trajectory = await served.trajectory(session)
        assert trajectory["dropped"] == {}
        assert [sum(row["loss_mask"]) for row in trajectory["rows"]] == [6]
        [call] = trajectory["calls"]
        assert call["segments"] == [
            {"engine_id": "engine-0", "start": 0, "end": 3},
            {"engine_id": "engine-1", "start": 3, "end": 6},
        ]


async def test_a_call_on_an_engine_that_is_held_back_moves_to_another_at_once() -> None:
    """A failed swap leaves an engine paused, which would send no token until `stall_s` is over."""
    async with serving(*[continues([*letters("hello"), END])] * 2) as served:
        paused = served.engine
        paused.hold()
        paused.allow(2)
        session = await served.open()
        call = asyncio.create_task(session.chat([user("q")]))
        await paused.until(lambda: len(paused.requests[0].token_ids) == 2 if paused.requests else False)
        await served.http.put("/engines/engine-0", json={"routable": False})
        assert (await call)["choices"][0]["message"]["content"] == "hello"
        await paused.until(lambda: paused.requests[0].aborted)
        trajectory = await served.trajectory(session)
        assert [call["engine_id"] for call in trajectory["calls"]] == ["engine-1"]
        assert trajectory["dropped"] == {}


async def test_a_call_survives_a_swap_that_holds_every_engine_back_in_turn() -> None:
    async with serving(*[always([*letters("hello"), END])] * 4) as served:
        table = served.server.gateway.pools.shared.table
        for engine in served.engines:
            engine.hold()
        session = await served.open()
        call = asyncio.create_task(session.chat([user("q")]))
        for held_back in range(3):
            await eventually(lambda n=held_back: sum(len(engine.requests) for engine in served.engines) == n + 1)
            [busy] = [engine.id for engine in table if engine.in_flight]
            await served.http.put(f"/engines/{busy}", json={"routable": False})
        for engine in served.engines:
            engine.release()
        assert (await call)["choices"][0]["message"]["content"] == "hello"
        assert (await served.trajectory(session))["dropped"] == {}


async def test_engines_that_fail_every_attempt_end_in_a_503() -> None:
    async with serving(always([END])) as served:
        served.engine.fail_next(*[Fault(kind="die")] * 3)
        response = await (await served.open()).post(messages=[user("q")])
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_lost")
        assert response.headers["retry-after"] == "1"


async def test_what_an_engine_sampled_before_it_broke_its_contract_is_counted_as_its_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = HttpEngineClient.stream

    async def breaking(self: HttpEngineClient, *arguments: Any, **options: Any) -> AsyncGenerator[TokenChunk]:
        async with aclosing(whole(self, *arguments, **options)) as chunks:
            yield await anext(chunks)
        raise EngineError("it ended with 'bored', which is unknown")

    async with serving(always([*letters("hello"), END])) as served:
        monkeypatch.setattr(HttpEngineClient, "stream", breaking)
        session = await served.open()
        response = await session.post(messages=[user("q")])
        assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_error")
        assert (await served.trajectory(session))["dropped"] == {"engine_fault": 1}


@pytest.mark.parametrize("limits", [{"max_calls": 1}, {"max_tokens": 6}])
async def test_a_call_that_got_no_answer_uses_up_no_limit(limits: dict[str, int]) -> None:
    """It was lost after 3 tokens, and three engines in a row gave none; sent again, it has the whole limit."""
    async with serving(continues([*letters("hello"), END]), breaker_backoff_s=0.01) as served:
        served.engine.fail_next(Fault(kind="die", after=3), *[Fault(kind="die")] * 3)
        session = await served.open(limits=limits)
        assert (await session.post(messages=[user("q")])).status_code == 503
        assert (await session.chat([user("q")]))["choices"][0]["message"]["content"] == "hello"
        response = await session.post(messages=[user("q")])
        assert (response.status_code, response.json()["error"]["code"]) == (400, "session_limit_reached")
        assert (await served.trajectory(session))["dropped"] == {"engine_lost": 3}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no_logprobs", "logprobs_missing"),
        ("short_logprobs", "logprobs_missing"),
        ("nan_logprobs", "logprobs_missing"),
        ("wrong_spans", "versions_wrong"),
    ],
)
async def test_case_2_a_sample_without_honest_logprobs_and_versions_is_not_trained(kind: str, reason: str) -> None:
    """Case 2. The text is answered; a logprob that is missing is not made up."""
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.fail_next(Fault(kind=kind))  # type: ignore[arg-type]
        session = await served.open()
        answer = await session.chat([user("q")])
        assert answer["choices"][0]["message"]["content"] == "hello"
        trajectory = await served.trajectory(session)
        assert (trajectory["rows"], trajectory["dropped"]) == ([], {reason: 6})
        assert trajectory["calls"][0]["logprobs"] is None


async def test_finish_ends_a_call_in_flight_and_counts_what_it_had_sampled() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.hold()
        session = await served.open()
        call = asyncio.create_task(session.post(messages=[user("q")]))
        await served.engine.until(lambda: served.engine.running == 1)
        served.engine.allow(2)
        await served.engine.until(lambda: len(served.engine.requests[0].token_ids) == 2)
        registered = served.server.gateway.sessions.get(session.id)
        summary = await served.finish(session, stop_reason="deadline")
        response = await call
        assert (response.status_code, response.json()["error"]["code"]) == (409, "session_sealed")
        assert (registered.in_flight, summary["rows"]) == (0, 0)
        assert set(summary["dropped"]) <= {"aborted"}
        await served.engine.until(lambda: served.engine.requests[0].aborted)


async def test_a_client_that_leaves_has_its_engine_request_aborted() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.hold()
        session = await served.open()
        call = asyncio.create_task(session.post(messages=[user("q")]))
        await served.engine.until(lambda: served.engine.running == 1)
        call.cancel()
        await served.engine.until(lambda: served.engine.requests[0].aborted)
        served.engine.release()
        assert (await session.chat([user("q")]))["choices"][0]["message"]["content"] == "hello"


async def test_a_deadline_that_passes_during_a_call_ends_it_cleanly() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.hold()
        session = await served.open(limits={"deadline_s": 0.2})
        response = await session.post(messages=[user("q")])
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (
            400,
            "session_limit_reached",
            "limits.deadline_s",
        )
        await served.engine.until(lambda: served.engine.requests[0].aborted)
        assert (await served.finish(session))["stop_reason"] == "deadline"


async def test_a_deadline_is_told_as_one_where_the_loop_is_ahead_of_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(always([END])) as served:
        served.engine.hold()
        session = await served.open(limits={"deadline_s": 0.2})
        now = served.server.gateway.sessions.get(session.id).created_at
        monkeypatch.setattr("agentrl.gateway.turns.time", SimpleNamespace(time=lambda: now))
        response = await session.post(messages=[user("q")])
        assert (response.status_code, response.json()["error"]["param"]) == (400, "limits.deadline_s")


async def test_a_call_past_the_request_timeout_is_a_504() -> None:
    async with serving(always([END]), request_timeout_s=0.2) as served:
        served.engine.hold()
        response = await (await served.open()).post(messages=[user("q")])
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")


async def test_a_token_limit_clamps_the_call_that_reaches_it_and_refuses_the_next() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        session = await served.open(limits={"max_tokens": 8})
        finished = [(await session.chat([user("q")]))["choices"][0]["finish_reason"] for _ in range(2)]
        assert finished == ["stop", "length"]
        response = await session.post(messages=[user("q")])
        assert (response.status_code, response.json()["error"]["param"]) == (400, "limits.max_tokens")
        assert [len(call["token_ids"]) for call in (await served.trajectory(session))["calls"]] == [6, 2]


@pytest.mark.parametrize(
    ("limits", "finish_reason"),
    [({}, "stop"), ({"max_tokens": 9}, "stop"), ({"max_tokens": 8}, "stop"), ({"max_tokens": 7}, "length")],
)
async def test_a_sample_as_long_as_the_limit_is_whole_and_one_more_token_is_not_sampled(
    limits: dict[str, int], finish_reason: str
) -> None:
    """Case 47: 7 letters and the end token are 8. Without a limit nothing is too long, and what is cut is kept."""
    turn = [*letters("letters"), END]
    async with serving(always(turn)) as served:
        session = await served.open(limits=limits)
        assert (await session.chat([user("q")]))["choices"][0]["finish_reason"] == finish_reason
        [row] = (await served.trajectory(session))["rows"]
        assert sum(row["loss_mask"]) == min(8, limits.get("max_tokens", 8))


async def test_a_call_that_waits_while_another_uses_up_the_token_limit_is_refused_by_name() -> None:
    async with serving(always([*letters("hello")]), max_in_flight_per_engine=1) as served:
        served.engine.hold()
        session = await served.open(limits={"max_tokens": 3})
        first = asyncio.create_task(session.post(messages=[user("q")]))
        await served.engine.until(lambda: served.engine.running == 1)
        second = asyncio.create_task(session.post(messages=[user("r")]))
        await eventually(lambda: served.server.gateway.pools.shared.waiting == 1)
        served.engine.release()
        assert (await first).json()["usage"]["completion_tokens"] == 3
        response = await second
        assert (response.status_code, response.json()["error"]["param"]) == (400, "limits.max_tokens")
        assert len(served.engine.requests) == 1


async def test_calls_wait_for_an_engine_that_is_restarting() -> None:
    async with serving(always([*ids("ok"), END])) as served:
        await served.engine.crash()
        session = await served.open()
        call = asyncio.create_task(session.chat([user("q")]))
        await eventually(lambda: served.server.gateway.pools.shared.waiting == 1)
        await served.engine.restart()
        assert (await call)["choices"][0]["message"]["content"] == "ok"


async def test_stopping_the_server_ends_calls_and_frees_the_port() -> None:
    async with serving(always([END])) as served:
        port = int(served.server.url.rpartition(":")[2])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))


async def test_a_port_in_use_is_named_with_the_fix() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = GatewayServer(GatewayConfig(port=port), renderer=renderer(), engine_factory=HttpEngineClient)
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use; choose another"):
            await server.start()


@pytest.mark.parametrize(("streamed", "interval"), [(False, 128), (True, None)])
async def test_pieces_are_large_where_nobody_waits_for_them(streamed: bool, interval: int | None) -> None:
    async with serving(always([*letters("hello"), END])) as served:
        session = await served.open()
        assert (await session.post(messages=[user("q")], stream=streamed)).status_code == 200
        assert served.engine.requests[0].sampling_params.get("stream_interval") == interval
        [call] = (await served.trajectory(session))["calls"]
        assert call["sampling"]["stream_interval"] is None  # it is no part of what was sampled
