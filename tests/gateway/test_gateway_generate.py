"""Token in, token out through the gateway: what vLLM's clients send and read, ours for engines first of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from gateway_builders import END, Opened, Served, always, ids, letters, says, serving
from hypothesis import given
from hypothesis import strategies as st
from openai_builders import RESPONDING, Sampled, events_of, generated, samples, stream_of

from agentrl.engine import wire
from agentrl.engine.scripted import Fault, Reply, scripted_logprob
from agentrl.engine.stream import GenerationReader
from agentrl.errors import EngineUnavailable
from agentrl.gateway.dialects.generate import GENERATE
from agentrl.types import Sampling, TokenChunk, VersionSpan

HELLO = [*letters("hello"), END]


async def post(served: Served, session: Opened, body: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {session.api_key}"}
    return await served.http.post(f"{served.server.url}/inference/v1/generate", json=body, headers=headers)


def request(token_ids: Sequence[int] = (5, 6), **params: Any) -> dict[str, Any]:
    return {"token_ids": list(token_ids), "sampling_params": params}


async def read(served: Served, session: Opened, sampling: Sampling, received: list[TokenChunk]) -> None:
    """Sends what our engine client sends and reads as it reads. Raises what it raises."""
    params = wire.sampling_params(sampling, max_tokens=100, send_seed=False)
    body = request(ids("q"), **params) | {"request_id": "mine", "stream": True, "cache_salt": "version 0"}
    headers = {"Authorization": f"Bearer {session.api_key}"}
    reader = GenerationReader(served.server.url, max_tokens=100, top_logprobs=sampling.top_logprobs)
    url = f"{served.server.url}/inference/v1/generate"
    async with served.http.stream("POST", url, json=body, headers=headers) as response:
        assert response.status_code == 200
        async for data in response.aiter_bytes():
            if not reader.done and reader.failure is None:
                received += reader.feed(data)
    reader.end()
    if reader.failure is not None:
        raise reader.failure


@pytest.mark.parametrize("top", [0, 2])
async def test_our_engine_client_reads_a_gateway_as_it_reads_an_engine(top: int) -> None:
    async with serving(always(HELLO)) as served:
        session = await served.open()
        chunks: list[TokenChunk] = []
        await read(served, session, Sampling(top_logprobs=top), chunks)
        assert [token_id for chunk in chunks for token_id in chunk.token_ids] == HELLO
        logprobs = [value for chunk in chunks for value in chunk.logprobs or []]
        assert logprobs == [scripted_logprob(token_id, 0) for token_id in HELLO]
        assert (chunks[-1].finish_reason, chunks[-1].versions) == ("stop", [VersionSpan(0, 0, len(HELLO))])
        [call] = (await served.trajectory(session))["calls"]
        assert (call["prompt_token_ids"], call["token_ids"]) == (ids("q"), HELLO)


async def test_a_failure_in_the_middle_is_to_our_engine_client_what_an_engines_is() -> None:
    async with serving(always(HELLO)) as served:
        served.engine.fail_next(Fault(kind="die", after=2), *[Fault(kind="die")] * 3)
        chunks: list[TokenChunk] = []
        with pytest.raises(EngineUnavailable, match="failed inside a generation"):
            await read(served, await served.open(), Sampling(), chunks)
        assert [token_id for chunk in chunks for token_id in chunk.token_ids] == HELLO[:2]


async def test_spans_say_which_weights_sampled_each_token_over_a_swap() -> None:
    async with serving(always(HELLO)) as served:
        served.engine.hold()
        served.engine.allow(2)
        session = await served.open()
        body = request(ids("q"), logprobs=0) | {"stream": True}
        headers = {"Authorization": f"Bearer {session.api_key}"}
        url = f"{served.server.url}/inference/v1/generate"
        async with served.http.stream("POST", url, json=body, headers=headers) as response:
            lines = response.aiter_lines()
            seen: list[int] = []
            while len(seen) < 2:
                line = await anext(lines)
                if line.startswith("data: "):
                    seen += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
            served.engine.label = "1"
            served.engine.release()
            events = [line.removeprefix("data: ") async for line in lines if line.startswith("data: ")]
        last = json.loads(events[-2])["choices"][0]
        assert (last["finish_reason"], events[-1]) == ("stop", "[DONE]")
        spans = [{"version": "0", "start": 0, "end": 2}, {"version": "1", "start": 2, "end": len(HELLO)}]
        assert last["weight_versions"] == spans
        [row] = (await served.trajectory(session))["rows"]
        assert [span["end"] - span["start"] for span in row["versions"]] == [2, len(HELLO) - 2]


async def test_ids_that_extend_an_earlier_call_are_its_child_and_train_once() -> None:
    async with serving(says(HELLO, [END])) as served:
        session = await served.open()
        await post(served, session, request(ids("q")))
        await post(served, session, request([*ids("q"), *HELLO, *ids("r")]))
        trajectory = await served.trajectory(session)
        assert [call["parent"] for call in trajectory["calls"]] == [None, 0]
        assert [sum(row["loss_mask"]) for row in trajectory["rows"]] == [len(HELLO) + 1]


async def test_ids_that_leave_the_earlier_call_in_its_sample_are_a_branch() -> None:
    async with serving(says(HELLO, [END])) as served:
        session = await served.open()
        await post(served, session, request(ids("q")))
        await post(served, session, request([*ids("q"), *HELLO[:3], *ids("r")]))
        assert [call["parent"] for call in (await served.trajectory(session))["calls"]] == [None, None]


async def test_a_whole_answer_has_the_fields_of_vllms() -> None:
    async with serving(always(HELLO)) as served:
        session = await served.open()
        body = request(ids("q"), logprobs=0, n=2) | {"request_id": "mine", "return_token_ids": True}
        found = (await post(served, session, body)).json()
        assert (found["request_id"], found["output_mode"], found["prompt_token_ids"]) == ("mine", "tokens", ids("q"))
        assert [choice["index"] for choice in found["choices"]] == [0, 1]
        choice = found["choices"][1]
        assert (choice["token_ids"], choice["finish_reason"], choice["stop_reason"]) == (HELLO, "stop", None)
        assert wire.checked_logprobs(HELLO, choice["logprobs"]) == [scripted_logprob(t, 0) for t in HELLO]
        assert wire.checked_spans(choice["weight_versions"], len(HELLO)) == [VersionSpan(0, 0, len(HELLO))]
        assert found["usage"] == {
            "prompt_tokens": len(ids("q")),
            "completion_tokens": 2 * len(HELLO),
            "total_tokens": len(ids("q")) + 2 * len(HELLO),
        }
        calls = [call["call_id"] for call in (await served.trajectory(session))["calls"]]
        assert sorted(calls) == [found["call_id"], f"{found['call_id']}-1"]


@pytest.mark.parametrize(
    ("params", "reply", "reason"),
    [
        ({"stop": ["lo"]}, Reply(token_ids=letters("hello"), stop_reason="lo"), "lo"),
        ({"stop_token_ids": ids("hello")}, Reply(token_ids=ids("hello"), stop_reason=ids("hello")[0]), ids("hello")[0]),
        ({}, Reply(token_ids=HELLO), None),
    ],
    ids=["string", "token", "eos"],
)
async def test_what_ended_an_answer_is_named_as_vllm_names_it(
    params: dict[str, Any], reply: Reply, reason: Any
) -> None:
    async with serving(always(reply)) as served:
        found = (await post(served, await served.open(), request(**params))).json()
        assert (found["choices"][0]["finish_reason"], found["choices"][0]["stop_reason"]) == ("stop", reason)


@pytest.mark.parametrize(
    ("outputs", "sent"),
    [
        ({"json": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"json_object": True, "regex": None}, {"json_object": True}),
    ],
)
async def test_structured_outputs_go_to_the_engine_and_are_not_trained(
    outputs: dict[str, Any], sent: dict[str, Any]
) -> None:
    async with serving(always(HELLO)) as served:
        session = await served.open()
        found = (await post(served, session, request(structured_outputs=outputs, logprobs=0))).json()
        assert served.engine.requests[0].sampling_params["structured_outputs"] == sent
        assert wire.checked_logprobs(HELLO, found["choices"][0]["logprobs"]) is not None
        trajectory = await served.trajectory(session)
        assert (trajectory["rows"], trajectory["dropped"]) == ([], {"constrained": len(HELLO)})


@given(samples(), st.sets(st.integers(1, 80)), st.none() | st.integers(0, 2))
def test_a_stream_adds_up_to_the_answer_without_streaming(sampled: Sampled, cuts: set[int], top: int | None) -> None:
    body = request(logprobs=top, stop=["stop"])
    answer, asked, pieces = generated(GENERATE, body, sampled, cuts)
    other, _, _ = generated(GENERATE, body, sampled, None)
    [whole] = json.loads(GENERATE.encode([other], asked, RESPONDING))["choices"]
    chunks = [event["choices"][0] for event in events_of(stream_of(GENERATE, answer, asked, pieces))]
    joined = [token_id for chunk in chunks for token_id in chunk["token_ids"]]
    entries = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert joined == whole["token_ids"]
    assert entries == (whole["logprobs"] or {"content": []})["content"]
    for name in ("finish_reason", "stop_reason", "weight_versions"):
        assert chunks[-1][name] == whole[name]
    assert all(chunk["finish_reason"] is None for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"token_ids": [], "sampling_params": {}}, "token_ids"),
        ({"token_ids": [-1], "sampling_params": {}}, "token_ids[0]"),
        (request(min_tokens=1), "sampling_params.min_tokens"),
        (request(ignore_eos=True), "sampling_params.ignore_eos"),
        (request(logprobs=-1), "sampling_params.logprobs"),
        (request(structured_outputs={"json": {}, "regex": "a"}), "sampling_params.structured_outputs"),
        (request(structured_outputs={"words": 3}), "sampling_params.structured_outputs.words"),
        (request(prompt_logprobs=1), "sampling_params.prompt_logprobs"),
        (request() | {"features": {}}, "features"),
        (request() | {"output_mode": "text"}, "output_mode"),
        (request() | {"priority": 1}, "priority"),
    ],
)
async def test_what_is_not_supported_is_a_400_that_names_the_field(body: dict[str, Any], named: str) -> None:
    async with serving(always(HELLO)) as served:
        response = await post(served, await served.open(), body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, named)
        assert served.engine.requests == []
