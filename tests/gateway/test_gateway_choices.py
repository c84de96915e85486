"""Several choices of one request: siblings in the graph, each trained once and counted by itself."""

from __future__ import annotations

import random
from functools import partial
from itertools import count
from typing import Any

import openai
import pytest
from gateway_builders import END, WEATHER, Opened, ids, letters, serving, user
from openai_builders import NOW, comparable, folded, sdk_of, streamed, text_of

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import Fault, Script
from agentrl.types import Sampling

QUESTION: list[Any] = [user("q")]
WORDS = ["one", "two two", "é"]
either = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])


def in_turn(*turns: list[int]) -> Script:
    """Samples these turns over and over, one a request."""
    at = count()
    return lambda prompt_ids, sampling, version: turns[next(at) % len(turns)]


def each_word() -> Script:
    return in_turn(*([*letters(word), END] for word in WORDS))


async def choices_of(session: Opened, streaming: bool, **body: Any) -> list[dict[str, Any]]:
    """The choices as the SDK has them in the end."""
    if streaming:
        return list(folded(await streamed(session, **body))["choices"])
    async with sdk_of(session) as sdk:
        found = await sdk.chat.completions.create(model="policy", **{"messages": QUESTION, **body})
    return list(comparable(found)["choices"])


@either
async def test_choices_are_siblings_and_each_is_trained_once(streaming: bool) -> None:
    async with serving(each_word()) as served:
        session = await served.open()
        choices = await choices_of(session, streaming, n=3)
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        assert sorted(choice["message"]["content"] for choice in choices) == sorted(WORDS)
        trajectory = await served.trajectory(session)
        assert [call["parent"] for call in trajectory["calls"]] == [None] * 3
        trained = [sum(row["loss_mask"]) for row in trajectory["rows"]]
        assert sorted(trained) == sorted(len(letters(word)) + 1 for word in WORDS)
        assert served.engine.prompts[0] == served.engine.prompts[1] == served.engine.prompts[2]


@either
async def test_choices_are_named_by_the_id_of_the_response(streaming: bool) -> None:
    """ID, ID-1, ID-2: so each can be given its own reward."""
    async with serving(each_word()) as served:
        session = await served.open()
        if streaming:
            response_id = (await streamed(session, n=3))[0].id
        else:
            response_id = (await session.chat(QUESTION, n=3))["id"]
        for number, call_id in enumerate((response_id, f"{response_id}-1", f"{response_id}-2")):
            body = {"reward": number / 2, "call_id": call_id}
            reward = await served.http.post(f"/sessions/{session.id}/reward", json=body)
            assert reward.status_code == 200, reward.text
        calls = (await served.trajectory(session))["calls"]
        assert sorted(call["reward"] for call in calls) == [0.0, 0.5, 1.0]


@either
async def test_the_next_turn_continues_the_choice_that_the_agent_took(streaming: bool) -> None:
    async with serving(each_word()) as served:
        session = await served.open()
        [_, second, _] = await choices_of(session, streaming, n=3)
        await session.chat([*QUESTION, second["message"], user("r")])
        calls = (await served.trajectory(session))["calls"]
        assert calls[-1]["parent"] is not None
        assert calls[calls[-1]["parent"]]["message"]["content"] == second["message"]["content"]
        assert calls[calls[-1]["parent"]]["call_id"].endswith("-1")


async def test_pieces_of_choices_come_side_by_side_and_each_has_its_role_once() -> None:
    async with serving(each_word()) as served:
        chunks = await streamed(await served.open(), n=3, stream_options={"include_usage": True})
        pieces = [choice for chunk in chunks for choice in chunk.choices]
        for index in range(3):
            own = [choice for choice in pieces if choice.index == index]
            assert [choice.delta.role for choice in own if choice.delta.role] == ["assistant"]
            assert own[0].delta.role == "assistant"
            assert [choice.finish_reason for choice in own if choice.finish_reason] == ["stop"]
        assert all(len(chunk.choices) == 1 for chunk in chunks[:-1])


@either
async def test_usage_counts_the_prompt_once_and_the_tokens_of_every_choice(streaming: bool) -> None:
    async with serving(each_word()) as served:
        session = await served.open()
        if streaming:
            usage = (await streamed(session, n=3, stream_options={"include_usage": True}))[-1].usage
            assert usage is not None
            found = usage.to_dict()
        else:
            found = (await session.chat(QUESTION, n=3))["usage"]
        sampled = sum(len(letters(word)) + 1 for word in WORDS)
        assert (found["prompt_tokens"], found["completion_tokens"]) == (len(served.engine.prompts[0]), sampled)


@either
async def test_calls_of_a_choice_are_its_own(streaming: bool) -> None:
    async with serving(in_turn([*ids(NOW), END], [*letters("no"), END])) as served:
        choices = await choices_of(await served.open(), streaming, n=2, tools=[WEATHER])
        reasons = sorted((choice["finish_reason"], "tool_calls" in choice["message"]) for choice in choices)
        assert reasons == [("stop", False), ("tool_calls", True)]


async def test_every_choice_counts_as_a_call_of_the_sessions_limit() -> None:
    async with serving(each_word()) as served:
        session = await served.open(limits={"max_calls": 4})
        await choices_of(session, False, n=3)
        with pytest.raises(openai.BadRequestError) as caught:
            await choices_of(session, True, n=2)
        assert caught.value.code == "session_limit_reached"
        assert len(served.engine.requests) == 3
        await choices_of(session, True, n=1)


async def test_a_choice_that_fails_ends_them_all_and_what_the_others_had_is_counted() -> None:
    """The first one is answered before the second is lost."""
    async with serving(each_word()) as served:
        never = Fault(kind="die", after=1000)
        served.engine.fail_next(never, *[Fault(kind="die")] * 3)
        session = await served.open()
        with pytest.raises(openai.InternalServerError):
            await choices_of(session, False, n=2)
        trajectory = await served.trajectory(session)
        assert trajectory["rows"] == []
        assert trajectory["dropped"] == {"undelivered": len(letters(WORDS[0])) + 1}


async def test_a_cut_choice_says_so_beside_one_that_ended() -> None:
    async with serving(in_turn(letters("abcdefgh"), [*letters("x"), END])) as served:
        choices = await choices_of(await served.open(), True, n=2, max_tokens=4)
        found = sorted((choice["finish_reason"], choice["message"]["content"]) for choice in choices)
        assert found == [("length", "abcd"), ("stop", "x")]


async def test_text_of_all_choices_is_whole() -> None:
    async with serving(in_turn([*letters("🔥é"), END])) as served:
        chunks = await streamed(await served.open(), n=2)
        for index in range(2):
            own = [chunk for chunk in chunks if chunk.choices[0].index == index]
            assert text_of(own) == "🔥é"


async def test_case_76_choices_of_one_seed_have_seeds_of_their_own_the_same_ones_each_time() -> None:
    """Case 76, in what is recorded."""
    async with serving(each_word()) as served:
        session = await served.open()
        for _ in range(2):
            await session.chat(QUESTION, n=3, seed=7)
        calls = (await served.trajectory(session))["calls"]
        seeds = [call["sampling"]["seed"] for call in calls]
        assert sorted(seeds) == [7, 7, 8, 8, 9, 9]
        assert all(call["sampling"]["seed"] == 8 for call in calls if call["call_id"].endswith("-1"))


@pytest.mark.parametrize("engines", [1, 2])
async def test_choices_of_one_seed_differ_and_come_again_whichever_engine_samples_them(engines: int) -> None:
    """Case 76, where seeds are sent: an engine that draws from the request's seed alone gives 4 answers, twice."""

    def drawn(prompt_ids: list[int], sampling: Sampling, version: int) -> list[int]:
        return [*letters("".join(random.Random(sampling.seed).choices("abcd", k=31))), END]

    seeded = partial(HttpEngineClient, send_seed=True)
    async with serving(*[drawn] * engines, engine_factory=seeded) as served:
        answers = []
        for _ in range(2):
            session = await served.open(sampling={"temperature": 1.0})
            choices = (await session.chat(QUESTION, n=4, seed=7, max_tokens=32))["choices"]
            answers.append([choice["message"]["content"] for choice in choices])
        assert answers[0] == answers[1]
        assert len(set(answers[0])) == 4
        assert all(engine.requests for engine in served.engines)
