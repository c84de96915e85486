"""Engines die, stall and are held back in the middle of calls, and no client sees anything of it (invariant 5)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from gateway_builders import END, Opened, Served, continues, ids, letters, renderer, serving, user
from scripted_process import EngineProcess, counted, engine_processes

from agentrl.audit.finding import Subject
from agentrl.audit.identity import IDENTITY
from agentrl.audit.once import ONCE
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.config import EngineTimeouts
from agentrl.engine.scripted import Fault
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.server import GatewayServer

HELLO = [*letters("hello"), END]
STREAMS = 32


async def streamed(session: Opened, **body: Any) -> list[dict[str, Any]]:
    """The chunks of one streamed answer."""
    response = await session.post(messages=[user("q")], stream=True, return_token_ids=True, **body)
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    return [json.loads(event) for event in events[:-1]]


def ids_of(chunks: list[dict[str, Any]]) -> list[int]:
    return [i for chunk in chunks for choice in chunk["choices"] for i in choice.get("token_ids", [])]


def text_of(chunks: list[dict[str, Any]]) -> str:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("lost_after", range(1, 6))
async def test_a_stream_goes_on_elsewhere_without_a_gap_or_a_repeat(lost_after: int) -> None:
    async with serving(continues(HELLO), continues(HELLO)) as served:
        served.engine.fail_next(Fault(kind="die", after=lost_after))
        session = await served.open()
        chunks = await streamed(session)
        assert (text_of(chunks), ids_of(chunks)) == ("hello", HELLO)
        [call] = (await served.trajectory(session))["calls"]
        assert call["token_ids"] == HELLO
        assert [segment["end"] for segment in call["segments"]] == [lost_after, 6]


async def test_a_second_turn_that_is_lost_after_five_tokens_goes_on_after_them_within_its_limit() -> None:
    """Case 58: 5 old and 3 new are the 8 that were asked for; ids, mask and logprobs agree in length."""
    turn = [*letters("hello you"), END]
    async with serving(continues(turn), continues(turn)) as served:
        session = await served.open()
        first = (await session.chat([user("q")]))["choices"][0]["message"]
        [busy] = [engine for engine in served.engines if engine.requests]
        other = served.engines[1 - served.engines.index(busy)]
        busy.fail_next(Fault(kind="die", after=5))
        second = await session.chat([user("q"), first, user("r")], max_tokens=8)
        assert second["choices"][0]["message"]["content"] == "hello yo"
        [resumed] = other.requests
        assert (resumed.prompt_ids[-5:], resumed.sampling_params["max_tokens"]) == (letters("hello"), 3)
        trajectory = await served.trajectory(session)
        call, [row] = trajectory["calls"][1], trajectory["rows"]
        assert call["token_ids"] == letters("hello yo")
        assert [segment["end"] for segment in call["segments"]] == [5, 8]
        assert row["token_ids"] == [*call["prompt_token_ids"], *call["token_ids"]]
        assert len(row["token_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
        assert sum(row["loss_mask"]) == len(turn) + 8
        assert trajectory["dropped"] == {}


async def test_a_call_says_when_it_got_an_engine_when_that_gave_its_first_token_and_when_it_was_lost() -> None:
    """In threes; an engine that is lost before its first token has both at once."""
    async with serving(continues(HELLO), continues(HELLO), continues(HELLO)) as served:
        served.engine.fail_next(Fault(kind="die", after=2))
        served.engines[1].fail_next(Fault(kind="refuse"))
        served.engines[2].fail_next(Fault(kind="refuse"))
        session = await served.open()
        await session.chat([user("q")])
        [call] = (await served.trajectory(session))["calls"]
        got, first, lost, *rest = call["moments"]
        assert [got, first, lost, *rest] == sorted(call["moments"])
        assert 0 <= lost <= (call["ended_at"] - call["started_at"]) * 1e6
        *without, _, _ = rest
        assert len(without) % 3 == 0
        assert without[1::3] == without[2::3]


async def test_logprobs_and_versions_of_a_joined_sample_are_those_of_the_engines_that_gave_them() -> None:
    """The lost engine's spans never came: its tokens count as of the oldest version that it served meanwhile."""
    async with serving(continues(HELLO), continues(HELLO)) as served:
        served.engine.fail_next(Fault(kind="die", after=2))
        served.engines[1].label = "1"
        await served.http.put("/engines/engine-1", json={"version": 1})
        session = await served.open()
        await streamed(session)
        [row] = (await served.trajectory(session))["rows"]
        prompt = len(row["token_ids"]) - 6
        assert row["versions"] == [
            {"version": 0, "start": prompt, "end": prompt + 2},
            {"version": 1, "start": prompt + 2, "end": prompt + 6},
        ]
        expected = [-(i % 1024 + 1) / 1024 - (0 if n < 2 else 1) for n, i in enumerate(HELLO)]  # the twin's formula
        assert row["logprobs"][prompt:] == expected


async def test_a_call_never_goes_on_with_older_weights() -> None:
    """Its first tokens are of version 1, and the other engine has version 0 until it is told otherwise."""
    async with serving(continues(HELLO), continues(HELLO)) as served:
        served.engine.label = "1"
        await served.http.put("/engines/engine-0", json={"version": 1})
        await served.http.put("/engines/engine-1", json={"routable": False})
        served.engine.fail_next(Fault(kind="die", after=2), *[Fault(kind="refuse")] * 20)
        session = await served.open()
        call = asyncio.create_task(session.chat([user("q")]))
        await served.engine.until(lambda: len(served.engine.requests) == 1)
        await served.http.put("/engines/engine-1", json={"routable": True})
        await served.engine.until(lambda: len(served.engine.requests) >= 2)
        served.engines[1].label = "1"
        await served.http.put("/engines/engine-1", json={"version": 1})
        await call
        assert all(request.versions in ([], [1] * 4) for request in served.engines[1].requests)
        [recorded] = (await served.trajectory(session))["calls"]
        assert {span["version"] for span in recorded["versions"]} == {1}


async def test_a_stop_string_that_spans_the_join_ends_the_sample_where_it_is_complete() -> None:
    """The second engine never saw its beginning, so it samples on."""
    turn = [*letters("4</answer> and more"), END]
    async with serving(continues(turn), continues(turn)) as served:
        served.engine.fail_next(Fault(kind="die", after=6))
        session = await served.open()
        chunks = await streamed(session, stop=["</answer>"])
        kept = letters("4</answer>")
        assert (text_of(chunks), ids_of(chunks)) == ("4", kept)
        call = (await served.trajectory(session))["calls"][0]
        assert (call["token_ids"], call["finish_reason"]) == (kept, "stop")


async def test_the_token_limit_of_a_joined_call_is_that_of_the_request() -> None:
    async with serving(continues(HELLO), continues(HELLO)) as served:
        served.engine.fail_next(Fault(kind="die", after=2))
        session = await served.open()
        chunks = await streamed(session, max_tokens=4)
        assert ids_of(chunks) == HELLO[:4]
        assert served.engines[1].requests[0].sampling_params["max_tokens"] == 2


@pytest.mark.parametrize(("max_tokens", "finish_reason"), [(6, "stop"), (3, "length")])
async def test_an_engine_that_is_lost_before_it_could_say_that_it_was_done_is_not_asked_for_more(
    max_tokens: int, finish_reason: str
) -> None:
    async with serving(continues(HELLO), continues(HELLO)) as served:
        served.engine.fail_next(Fault(kind="die", after=max_tokens))
        session = await served.open()
        answer = await session.chat([user("q")], max_tokens=max_tokens)
        assert answer["choices"][0]["finish_reason"] == finish_reason
        assert [len(engine.requests) for engine in served.engines] == [1, 0]


async def test_a_character_that_the_join_cuts_is_whole_for_the_client() -> None:
    turn = [*ids("ok "), *letters("🔥"), END]
    async with serving(continues(turn), continues(turn)) as served:
        served.engine.fail_next(Fault(kind="die", after=len(ids("ok ")) + 2))
        assert text_of(await streamed(await served.open())) == "ok 🔥"


async def test_an_engine_that_stalls_is_left_after_its_timeout() -> None:
    def impatient(url: str) -> HttpEngineClient:
        return HttpEngineClient(url, timeouts=EngineTimeouts(stall_s=0.2))

    async with serving(continues(HELLO), continues(HELLO), engine_factory=impatient) as served:
        served.engine.fail_next(Fault(kind="stall", after=3))
        session = await served.open()
        assert text_of(await streamed(session)) == "hello"
        await served.engine.until(lambda: served.engine.requests[0].aborted)


@pytest.mark.parametrize("harm", [EngineProcess.kill, EngineProcess.stop], ids=["kill -9", "SIGSTOP"])
async def test_streams_of_an_engine_process_that_is_lost_all_complete(harm: Callable[[EngineProcess], None]) -> None:
    """32 streams over two engines, one of which dies or freezes in their middle. Every token is where it belongs."""
    length = 40

    def attentive(url: str) -> HttpEngineClient:
        return HttpEngineClient(url, timeouts=EngineTimeouts(probe_s=0.5))

    with engine_processes(2, length=length, pace_s=0.01) as engines:
        config = GatewayConfig(engine_urls=tuple(engine.url for engine in engines), health_every_s=0.2)
        server = GatewayServer(config, renderer=renderer(), engine_factory=attentive)
        await server.start()
        headers = {"Authorization": f"Bearer {server.admin_key}"}
        try:
            async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60, trust_env=False) as http:
                served = Served(server, [], http)
                sessions = [await served.open() for _ in range(STREAMS)]
                half = asyncio.Event()
                calls = [asyncio.create_task(_counted_stream(session, length, half)) for session in sessions]
                async with asyncio.timeout(60):
                    await half.wait()
                    harm(engines[0])
                    await asyncio.gather(*calls)
                trajectories = [server.gateway.sessions.get(session.id).trajectory() for session in sessions]
        finally:
            await server.stop()
    joined = 0
    for trajectory in trajectories:
        subject = Subject(trajectory)
        assert IDENTITY.examine(subject).findings == ONCE.examine(subject).findings == []
        [call] = trajectory.calls
        held = len(call.prompt_token_ids)
        assert call.token_ids == [counted(held + i) for i in range(length)]
        joined += len(call.segments) == 2
    assert 0 < joined < STREAMS


async def _counted_stream(session: Opened, length: int, half: asyncio.Event) -> None:
    """Checks as it comes that every token follows the one before; tells when half of them are there."""
    body = {"messages": [user("q")], "stream": True, "return_token_ids": True, "max_tokens": length}
    headers = {"Authorization": f"Bearer {session.api_key}"}
    url, got = f"{session.base_url}/chat/completions", []
    async with session.http.stream("POST", url, json=body, headers=headers) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                got += ids_of([json.loads(line.removeprefix("data: "))])
                if len(got) >= length // 2:
                    half.set()
    assert len(got) == length
