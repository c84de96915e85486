"""Whole episodes over HTTP: token identity, masks and branches, in random and in awkward cases."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from gateway_builders import (
    CHATML,
    END,
    STRIPS_THINK,
    WITH_BOS,
    Opened,
    Served,
    always,
    backend,
    ids,
    letters,
    says,
    serving,
    user,
)

from agentrl.digest import digest_of
from agentrl.engine.scripted import Reply, scripted_logprob

THINK = "<think>let me think</think>"


def masked(row: dict[str, Any]) -> list[int]:
    return [token for token, mask in zip(row["token_ids"], row["loss_mask"], strict=True) if mask]


async def random_episode(served: Served, session: Opened, rng: random.Random) -> None:
    """Up to four turns; now and then history is rewritten or a turn is asked for twice."""
    messages = [user("".join(rng.choices("abc é🔥<|im_end|>", k=6)))]
    for _ in range(rng.randint(1, 4)):
        answer = await session.chat(messages, max_tokens=rng.choice([3, 50]))
        if rng.random() < 0.15:
            continue  # the same again: a sibling
        messages += [answer["choices"][0]["message"], user(rng.choice(["more", "é🔥", "<|im_end|>"]))]
        if rng.random() < 0.15:
            messages[0] = user("edited")


@pytest.mark.parametrize("template", [CHATML, WITH_BOS, STRIPS_THINK])
async def test_case_1_in_200_random_episodes_every_row_is_what_the_engine_saw(template: str) -> None:
    rng = random.Random(5)
    vocabulary = backend().get_vocab_size()

    def script(prompt_ids: list[int], sampling: Any, version: int) -> list[int]:
        return [*(rng.randrange(vocabulary) for _ in range(rng.randint(0, 8))), END]

    async with serving(script, template=template) as served:
        sessions = [await served.open() for _ in range(70)]  # 210 over the three templates
        await asyncio.gather(*(random_episode(served, session, rng) for session in sessions))
        seen = {tuple(request.prompt_ids + request.token_ids) for request in served.engine.requests}
        for session in sessions:
            trajectory = await served.trajectory(session)
            calls, rows = trajectory["calls"], trajectory["rows"]
            for row in rows:
                assert tuple(row["token_ids"]) in seen
                assert len(row["token_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
                for token, mask, logprob in zip(row["token_ids"], row["loss_mask"], row["logprobs"], strict=True):
                    assert logprob == (scripted_logprob(token, 0) if mask else None)
            for call in calls:
                assert call["prompt_digest"] == digest_of(call["prompt_token_ids"])
                if call["parent"] is not None:
                    parent = calls[call["parent"]]
                    whole = parent["prompt_token_ids"] + parent["token_ids"]
                    assert call["prompt_token_ids"][: len(whole)] == whole
            assert sorted(t for row in rows for t in masked(row)) == sorted(
                t for call in calls for t in call["token_ids"]
            )


async def test_case_6_thoughts_that_the_template_strips_stay_in_the_prefix_over_three_turns() -> None:
    """Case 6. One row, and it is the last request's prompt and sample, id for id."""
    turns = [[*ids(f"{THINK}{word}"), END] for word in ("one", "two", "three")]
    async with serving(says(*turns), template=STRIPS_THINK) as served:
        session = await served.open()
        messages = [user("q")]
        for _ in turns:
            answer = await session.chat(messages)
            messages += [answer["choices"][0]["message"], user("more")]
        [row] = (await served.trajectory(session))["rows"]
        assert row["token_ids"] == [*served.engine.prompts[2], *turns[2]]
        assert served.engine.prompts[2][: len(served.engine.prompts[0]) + len(turns[0])] == [
            *served.engine.prompts[0],
            *turns[0],
        ]
        assert masked(row) == [token for turn in turns for token in turn]


async def test_case_8_what_is_trained_is_exactly_what_was_sampled() -> None:
    """Case 8. Neither the role's header nor the newline after the end token."""
    first, second = [*letters("hello"), END], [*ids("world"), END]
    async with serving(says(first, second)) as served:
        session = await served.open()
        answer = await session.chat([user("q")])
        await session.chat([user("q"), answer["choices"][0]["message"], user("r")])
        [row] = (await served.trajectory(session))["rows"]
        assert masked(row) == first + second
        start = len(served.engine.prompts[0])
        newline_after_end = start + len(first)
        assert row["loss_mask"][start - 1 : newline_after_end + 1] == [0, *[1] * len(first), 0]


async def test_case_11_a_sample_without_an_end_token_is_masked_to_its_own_length() -> None:
    async with serving(says(letters("abc"), letters("abcdefgh"))) as served:
        rows = []
        for asked in (3, 8):
            session = await served.open()
            answer = await session.chat([user("q")], max_tokens=asked)
            assert answer["choices"][0]["finish_reason"] in ("length", "stop")
            rows += (await served.trajectory(session))["rows"]
        assert [sum(row["loss_mask"]) for row in rows] == [3, 8]


async def test_case_12_the_end_token_is_trained_although_it_is_the_pad_token() -> None:
    async with serving(always([*ids("a"), *ids("b"), END])) as served:
        session = await served.open()
        await session.chat([user("q")])
        [row] = (await served.trajectory(session))["rows"]
        assert row["token_ids"].count(END) == 2  # the prompt has one as well
        assert masked(row) == [*ids("a"), *ids("b"), END]
        assert row["logprobs"][-1] == scripted_logprob(END, 0)


async def test_case_13_an_end_marker_that_the_gateway_adds_is_not_trained() -> None:
    """Case 13."""
    stopped = Reply(token_ids=letters("4</a>"), stop_reason="</a>")
    async with serving(says(stopped, [*ids("ok"), END])) as served:
        session = await served.open()
        answer = await session.chat([user("q")], stop=["</a>"])
        await session.chat([user("q"), answer["choices"][0]["message"], user("r")])
        [row] = (await served.trajectory(session))["rows"]
        added = len(served.engine.prompts[0]) + len(stopped.token_ids)
        assert (row["token_ids"][added], row["loss_mask"][added], row["logprobs"][added]) == (END, 0, None)


async def test_case_13_a_session_without_a_call_has_no_row() -> None:
    """Case 13. What failed before its first call has no filler token."""
    async with serving(always([END])) as served:
        session = await served.open()
        await served.finish(session, stop_reason="env_error")
        trajectory = await served.trajectory(session)
        assert (trajectory["calls"], trajectory["rows"], trajectory["dropped"]) == ([], [], {})


async def test_case_48_an_empty_sample_is_counted_and_adds_no_row() -> None:
    async with serving(says([], [END])) as served:
        empty, ended = await served.open(), await served.open()
        answer = await empty.chat([user("q")])
        await ended.chat([user("q")])
        assert answer["choices"][0]["message"]["content"] == ""
        nothing, something = await served.trajectory(empty), await served.trajectory(ended)
        assert (nothing["rows"], nothing["dropped"]) == ([], {"empty": 0})
        assert [masked(row) for row in something["rows"]] == [[END]]


async def test_case_51_a_sample_cut_inside_a_character_keeps_its_ids_in_the_next_prompt() -> None:
    cut = letters("🔥")[:2]
    async with serving(says(Reply(token_ids=cut, finish_reason="length"), [END])) as served:
        session = await served.open()
        answer = await session.chat([user("q")])
        assert answer["choices"][0]["message"]["content"] == ""
        await session.chat([user("q"), answer["choices"][0]["message"], user("r")])
        first, second = served.engine.prompts
        assert second[: len(first) + 3] == [*first, *cut, END]


async def test_rewritten_history_starts_a_branch_with_a_row_of_its_own() -> None:
    async with serving(says([*ids("one"), END], [*ids("two"), END], [*ids("three"), END])) as served:
        session = await served.open()
        answer = (await session.chat([user("q")]))["choices"][0]["message"]
        await session.chat([user("q"), answer, user("r")])
        await session.chat([user("q"), {**answer, "content": "rewritten"}, user("r")])
        trajectory = await served.trajectory(session)
        assert [call["parent"] for call in trajectory["calls"]] == [None, 0, None]
        assert [masked(row) for row in trajectory["rows"]] == [
            [*ids("one"), END, *ids("two"), END],
            [*ids("three"), END],
        ]


async def test_a_sub_agent_with_its_own_system_prompt_is_a_branch_and_the_main_thread_goes_on() -> None:
    async with serving(says([*ids("one"), END], [*ids("sub"), END], [*ids("two"), END])) as served:
        session = await served.open()
        answer = (await session.chat([user("q")]))["choices"][0]["message"]
        await session.chat([{"role": "system", "content": "you are a helper"}, user("q")])
        await session.chat([user("q"), answer, user("r")])
        trajectory = await served.trajectory(session)
        assert [call["parent"] for call in trajectory["calls"]] == [None, None, 0]
        assert len(trajectory["rows"]) == 2


async def test_case_56_the_call_after_a_swap_shares_no_prefix_cache_with_those_before() -> None:
    """Also before the next health check, which never comes here."""
    async with serving(always([END]), health_every_s=1000) as served:
        session = await served.open()
        await session.chat([user("q")])
        await served.http.put("/engines/engine-0", json={"version": 1})
        await session.chat([user("q")])
        assert [request.cache_salt for request in served.engine.requests] == ["version 0", "version 1"]


async def test_a_token_keeps_the_version_that_sampled_it_over_a_swap_between_turns() -> None:
    async with serving(always([*ids("one"), END])) as served:
        session = await served.open()
        answer = (await session.chat([user("q")]))["choices"][0]["message"]
        served.engine.label = "1"
        [engine] = (await served.http.get("/engines")).json()["engines"]
        await served.http.put(f"/engines/{engine['id']}", json={"version": 1})
        await session.chat([user("q"), answer, user("r")])
        [row] = (await served.trajectory(session))["rows"]
        assert [span["version"] for span in row["versions"]] == [0, 1]
        assert [span["end"] - span["start"] for span in row["versions"]] == [len(ids("one")) + 1] * 2
