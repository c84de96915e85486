"""What a session is opened with: history policy, evaluation versions, limits; and how an agent is told of an end."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest
from gateway_builders import CHATML, END, STRIPS_THINK, Served, always, ids, letters, says, serving, user

from agentrl.engine.client import HttpEngineClient

THOUGHT = [*ids("<think>hm</think>"), *letters("one"), END]


async def metric(served: Served, line: str) -> float:
    text = (await served.http.get("/metrics")).text
    return next((float(found.rpartition(" ")[2]) for found in text.splitlines() if found.startswith(line)), 0.0)


async def two_turns(served: Served, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The trajectory of an episode whose first answer has a thought, and what finish answered."""
    session = await served.open(**options)
    first = (await session.chat([user("q")]))["choices"][0]["message"]
    await session.chat([user("q"), first, user("r")])
    finished = await served.finish(session)
    return await served.trajectory(session), finished


# History


@pytest.mark.parametrize("short", [0, 100_000])
async def test_append_keeps_the_recorded_ids_and_shows_what_the_template_would_have_done(
    short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is measured in a thread, as for a long session, or not."""
    monkeypatch.setattr("agentrl.gateway.gateway.SHORT_IDS", short)
    async with serving(says(THOUGHT, [*ids("two"), END]), template=STRIPS_THINK) as served:
        trajectory, finished = await two_turns(served)
        assert len(trajectory["rows"]) == 1
        assert trajectory["calls"][1]["parent"] == 0
        drift = finished["drift"]
        assert (drift["conversations"], drift["compared"]) == (1, 1)
        recorded = trajectory["rows"][0]["token_ids"]
        assert drift["tokens"] == len(recorded[len(trajectory["calls"][0]["prompt_token_ids"]) : -1])
        assert await metric(served, 'agentrl_gateway_drift_tokens_total{history="append"}') == drift["tokens"]


async def test_rerender_gives_the_model_what_the_template_writes_and_branches_there() -> None:
    async with serving(says(THOUGHT, [*ids("two"), END]), template=STRIPS_THINK) as served:
        trajectory, finished = await two_turns(served, history="rerender")
        assert trajectory["calls"][1]["prompt_token_ids"] == ids(
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
            "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"
        )
        assert [sum(row["loss_mask"]) for row in trajectory["rows"]] == [len(THOUGHT), len(ids("two")) + 1]
        thought_and_answer = len(THOUGHT) - 1  # of the first row, whose thought this template never writes
        assert finished["drift"] == {"tokens": thought_and_answer, "conversations": 1, "compared": 2}
        assert await metric(served, 'agentrl_gateway_branches_total{cause="template"}') == 1


@pytest.mark.parametrize("history", ["append", "rerender"])
async def test_where_the_template_writes_what_was_sampled_both_policies_are_one_row_without_drift(history: str) -> None:
    async with serving(says([*ids("one"), END], [*ids("two"), END]), template=CHATML) as served:
        trajectory, finished = await two_turns(served, history=history)
        assert len(trajectory["rows"]) == 1
        assert finished["drift"] == {"tokens": 0, "conversations": 0, "compared": 1}


async def test_a_gateway_that_is_told_so_does_not_measure_drift() -> None:
    async with serving(says(THOUGHT, [END]), template=STRIPS_THINK, measure_drift=False) as served:
        assert (await two_turns(served))[1]["drift"] is None


# Evaluation


async def swap(served: Served, version: int) -> None:
    """As a publisher tells a gateway; the engine has the weights."""
    served.engine.label = str(version)
    client = HttpEngineClient(served.engine.url)
    try:
        assert await client.version() == version
    finally:
        await client.close()
    assert (await served.http.put("/engines/engine-0", json={"version": version})).status_code == 200


@pytest.mark.parametrize(("options", "status"), [({}, 409), ({"across_swaps": True}, 200)])
async def test_an_evaluation_is_of_one_version_unless_it_asked_otherwise(options: dict[str, Any], status: int) -> None:
    async with serving(always([*ids("ok"), END])) as served:
        session = await served.open(mode="eval", **options)
        await session.chat([user("q")])
        await swap(served, 1)
        response = await session.post(messages=[user("q")])
        assert response.status_code == status
        if status == 409:
            assert response.json()["error"]["code"] == "version_changed"
            assert response.headers["x-should-retry"] == "false"
        versions = {
            span["version"] for call in (await served.trajectory(session))["calls"] for span in call["versions"]
        }
        assert versions == ({0} if status == 409 else {0, 1})


async def test_a_training_session_goes_on_over_a_swap() -> None:
    async with serving(always([*ids("ok"), END])) as served:
        session = await served.open()
        await session.chat([user("q")])
        await swap(served, 1)
        await session.chat([user("q")])
        assert [call["versions"][0]["version"] for call in (await served.trajectory(session))["calls"]] == [0, 1]


async def test_an_evaluation_may_sample_as_a_training_session_may_not() -> None:
    async with serving(always([END])) as served:
        for mode, status in (("train", 400), ("eval", 200)):
            response = await (await served.open(mode=mode)).post(messages=[user("q")], temperature=0)
            assert response.status_code == status


async def test_what_the_run_pinned_holds_whatever_the_agent_asks_for() -> None:
    async with serving(always([END])) as served:
        session = await served.open(sampling={"temperature": 0.7, "max_tokens": 5})
        await session.chat([user("q")], temperature=0.1, max_tokens=50)
        sampling = (await served.trajectory(session))["calls"][0]["sampling"]
        assert (sampling["temperature"], sampling["max_tokens"]) == (0.7, 5)


# Limits, in each dialect's own error form


async def ask(session: Any, path: str, body: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {session.api_key}"}
    return await session.http.post(session.base_url.removesuffix("/v1") + path, json=body, headers=headers)


OPENAI_FORM = [
    ("/v1/chat/completions", {"messages": [user("q")]}),
    ("/v1/completions", {"model": "m", "prompt": "q"}),
    ("/v1/responses", {"model": "m", "input": "q"}),
    ("/inference/v1/generate", {"token_ids": [65]}),
]


@pytest.mark.parametrize(
    ("limits", "stop_reason"), [({"max_calls": 1}, "max_turns"), ({"max_tokens": 1}, "max_tokens")]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_used_up_limit_is_a_400_by_name_that_no_sdk_retries(
    limits: dict[str, int], stop_reason: str, stream: bool
) -> None:
    async with serving(always([END])) as served:
        session = await served.open(limits=limits)
        await session.chat([user("q")])
        named = f"limits.{next(iter(limits))}"
        for path, body in OPENAI_FORM:
            response = await ask(session, path, {**body, "stream": stream})
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (400, "session_limit_reached", named), path
            assert response.headers["x-should-retry"] == "false"
        response = await ask(session, "/v1/messages", {"max_tokens": 4, "messages": [user("q")], "stream": stream})
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["details"] == {"error_code": "session_limit_reached", "param": named}
        assert (await served.finish(session))["stop_reason"] == stop_reason


async def test_the_sdks_raise_a_limit_as_a_bad_request_after_one_attempt() -> None:
    async with serving(always([END])) as served:
        session = await served.open(limits={"max_calls": 1})
        await session.chat([user("q")])
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as sdk:
            with pytest.raises(openai.BadRequestError, match=r"limits\.max_calls: all 1 calls are used"):
                await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
        url = session.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=url, api_key=session.api_key, auth_token=None) as claude:
            with pytest.raises(anthropic.BadRequestError, match=r"limits\.max_calls: all 1 calls are used"):
                await claude.messages.create(model="m", max_tokens=4, messages=[{"role": "user", "content": "q"}])
        assert len(served.engine.requests) == 1


async def test_a_limit_that_strikes_in_a_stream_ends_it_at_the_last_token_that_was_left() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        session = await served.open(limits={"max_tokens": 3})
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as sdk:
            stream = await sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "q"}], stream=True
            )
            chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hel"
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


async def test_a_deadline_that_passes_in_a_stream_ends_it_with_an_error_that_the_sdk_raises() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.hold()
        session = await served.open(limits={"deadline_s": 0.3})
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as sdk:
            asked = asyncio.create_task(
                sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}], stream=True)
            )
            await served.engine.until(lambda: served.engine.running == 1)
            served.engine.allow(2)
            with pytest.raises(openai.APIError, match="deadline_s"):
                async for _ in await asked:
                    pass
        assert (await served.finish(session))["stop_reason"] == "deadline"
