"""How a session ends, for whoever ran an agent in it: which limit, what was said, what nobody answered."""

from __future__ import annotations

from typing import Any

from gateway_builders import END, MemorySink, always, ids, says, serving, user

from agentrl.engine.scripted import Fault

ANSWER = always([*ids("hello"), END])


def calling(name: str = "weather", times: int = 1) -> list[int]:
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
    return [*ids("\n".join([call] * times)), END]


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def answers_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in message["tool_calls"]]


async def test_a_message_past_the_limit_of_tool_calls_is_the_last_one() -> None:
    """Two are allowed. The second message brings them to three."""
    async with serving(says(calling(), calling(times=2), calling())) as served:
        session = await served.open(limits={"max_tool_calls": 2})
        messages = [user("q")]
        for _ in range(2):
            message = (await session.chat(messages, tools=[TOOL]))["choices"][0]["message"]
            messages += [message, *answers_of(message)]
        refused = await session.post(messages=messages, tools=[TOOL])
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (
            400, "session_limit_reached", "limits.max_tool_calls",
        )  # fmt: skip
        assert "3 tool calls were made and 2 are allowed" in error["message"]
        assert (await served.finish(session))["stop_reason"] == "max_tool_calls"


async def test_as_many_tool_calls_as_allowed_may_be_answered() -> None:
    async with serving(says(calling(times=2), [*ids("hello"), END])) as served:
        session = await served.open(limits={"max_tool_calls": 2})
        message = (await session.chat([user("q")], tools=[TOOL]))["choices"][0]["message"]
        last = await session.chat([user("q"), message, *answers_of(message)], tools=[TOOL])
        assert last["choices"][0]["message"]["content"] == "hello"


async def test_a_limit_that_refused_a_call_comes_before_the_stop_reason_given_when_asked() -> None:
    async with serving(ANSWER) as served:
        for limit_first, stop_reason in ((True, "max_turns"), (False, "done")):
            session = await served.open(limits={"max_calls": 1})
            await session.chat([user("q")])
            assert (await session.post(messages=[user("more")])).status_code == 400
            ended = await served.finish(session, stop_reason="done", limit_first=limit_first)
            assert ended["stop_reason"] == stop_reason


async def test_without_a_limit_the_stop_reason_given_holds() -> None:
    async with serving(ANSWER) as served:
        session = await served.open(limits={"max_calls": 1})
        await session.chat([user("q")])
        assert (await served.finish(session, stop_reason="done", limit_first=True))["stop_reason"] == "done"


async def test_finish_answers_with_the_conversation_when_asked() -> None:
    async with serving(ANSWER) as served:
        session = await served.open()
        assert (await served.finish(session))["messages"] is None
        session = await served.open()
        first = (await session.chat([user("a")]))["choices"][0]["message"]
        await session.chat([user("a"), first, user("b")])
        messages = (await served.finish(session, conversation=True))["messages"]
        said = [(message["role"], message["content"]) for message in messages]
        assert said == [("user", "a"), ("assistant", "hello"), ("user", "b"), ("assistant", "hello")]


async def test_a_request_that_no_engine_answered_is_counted_until_its_retry_is() -> None:
    async with serving(ANSWER, engine_wait_s=0.05) as served:
        session = await served.open()
        served.engine.fail_next(*[Fault(kind="refuse")] * 50)
        assert (await session.post(messages=[user("q")])).status_code == 503
        held = await served.server.gateway.session(session.id)
        assert len(held.unanswered) == 1
        served.engine.faults.clear()
        while (await session.post(messages=[user("q")])).status_code == 503:  # until the breaker lets it through
            pass
        assert (await served.finish(session))["unanswered"] == 0


async def test_what_is_wrong_with_a_request_is_no_failure_of_ours() -> None:
    async with serving(ANSWER) as served:
        session = await served.open()
        assert (await session.post(messages=[user("q")], bogus=1)).status_code == 400
        assert (await served.finish(session))["unanswered"] == 0


async def test_rewards_of_several_calls_come_with_the_sessions_own() -> None:
    sink = MemorySink()
    async with serving(ANSWER, sink=sink) as served:
        session = await served.open()
        first = await session.chat([user("a")])
        second = await session.chat([user("b")])
        body = {"reward": 0.75, "call_rewards": {first["id"]: 0.25, second["id"]: 0.5}}
        assert (await served.http.post(f"/sessions/{session.id}/reward", json=body)).status_code == 200
        await served.finish(session)
        saved = sink.saved[session.id]
        assert (saved.reward, [call.reward for call in saved.calls]) == (0.75, [0.25, 0.5])
        late = await served.http.post(f"/sessions/{session.id}/reward", json=body)
        assert late.status_code == 409


async def test_a_full_context_that_refused_the_last_call_is_a_limit_too() -> None:
    async with serving(ANSWER, max_model_len=30) as served:
        session = await served.open()
        assert (await session.post(messages=[user("hello " * 40)])).status_code == 400
        assert (await served.finish(session, stop_reason="env_error", limit_first=True))["stop_reason"] == (
            "context_overflow"
        )


async def test_a_client_that_went_on_after_a_full_context_was_not_ended_by_it() -> None:
    async with serving(ANSWER, max_model_len=60) as served:
        session = await served.open()
        assert (await session.post(messages=[user("hello " * 80)])).status_code == 400
        await session.chat([user("q")])
        assert (await served.finish(session, stop_reason="done", limit_first=True))["stop_reason"] == "done"
