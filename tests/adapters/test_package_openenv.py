"""OpenEnv both ways, with its own package: our client at its server, and its client at ours."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
import uvicorn
from adapter_episode import ADAPTERS, call, play, said
from fastmcp import FastMCP
from openenv.core import GenericEnvClient
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from pydantic import Field

import agentrl
from agentrl.engine.launch import listening_socket
from agentrl.messages import Message
from agentrl.rollout.openenv_server import openenv_app
from agentrl.types import Task

OPENENV = f"{ADAPTERS}:OpenEnv"


@contextlib.contextmanager
def serving(app: Any) -> Iterator[tuple[str, uvicorn.Server]]:
    taken = listening_socket(0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield f"http://127.0.0.1:{taken.getsockname()[1]}", server
    server.should_exit = True
    thread.join(10)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


class Word(Action):
    word: str = Field(description="One word")


class Heard(Observation):
    text: str = ""


class Guess(Action):
    low: int = Field(ge=0, description="The number is not below it")
    high: int


class Repeat(Environment[Word, Heard, State]):
    """Wants its word back, which the seed chooses, within two tries; 'boom' breaks it, 'sleep' stalls it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    closed = 0

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, word: str = "", **kwargs: Any) -> Heard:
        self.word, self.tries = word or f"word{seed}", 0
        return Heard(text=f"Say {self.word}.")

    def step(self, action: Word, timeout_s: float | None = None, **kwargs: Any) -> Heard:
        if action.word == "boom":
            raise RuntimeError("it broke")
        if action.word == "sleep":
            time.sleep(3)
        self.tries += 1
        right = action.word == self.word
        return Heard(text="Yes." if right else "No.", reward=float(right) if right or self.tries == 2 else None,
                     done=right or self.tries == 2)  # fmt: skip

    @property
    def state(self) -> State:
        return State(step_count=self.tries)

    def close(self) -> None:
        type(self).closed += 1


class Bisect(Repeat):
    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Heard:  # type: ignore[override]
        return Heard(text=f"{action.low}..{action.high}", reward=1.0 if action.low == action.high else 0.0,
                     done=action.low == action.high)  # fmt: skip


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("tools")

        @server.tool
        def double(number: int) -> int:
            """Twice the number."""
            return 2 * number

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation(done=False, reward=None, metadata={"ready": True})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise ValueError("tools only")

    @property
    def state(self) -> State:
        return State()


@pytest.fixture(scope="module")
def repeat() -> Iterator[str]:
    with serving(create_app(Repeat, Word, Heard, max_concurrent_envs=4)) as (url, _):
        yield url


def task(seed: int = 3, **options: Any) -> Task:
    return Task(id="t", env_id=OPENENV, seed=seed, options=options)


async def test_a_text_environment_takes_the_reply_as_its_one_field(repeat: str) -> None:
    right, _ = await play(OPENENV, ["word3"], task=task(), url=repeat)
    late, _ = await play(OPENENV, ["no", "word3"], task=task(), url=repeat)
    wrong, _ = await play(OPENENV, ["no", "no"], task=task(), url=repeat)
    assert said(right, 0) == "Say word3."
    assert [episode.reward for episode in (right, late, wrong)] == [1.0, 1.0, 0.0]
    assert {episode.stop_reason for episode in (right, late, wrong)} == {"done"}


async def test_options_of_the_task_reach_reset(repeat: str) -> None:
    episode, _ = await play(OPENENV, ["apple"], task=task(word="apple"), url=repeat.replace("http", "ws"))
    assert (said(episode, 0), episode.reward) == ("Say apple.", 1.0)


async def test_a_prompt_and_instructions_come_before_what_the_environment_says(repeat: str) -> None:
    episode, _ = await play(OPENENV, ["word3"], task=task(), url=repeat, prompt="Listen.", instructions="One word.")
    assert [said(episode, 0), said(episode, 1)] == ["One word.", "Listen.\nSay word3."]


def parse(text: str) -> dict[str, Any]:
    if text == "?":
        raise ValueError("say a word")
    return {"word": text.strip("!")} if text != "wrong" else {"sentence": text}


async def test_a_function_makes_the_action_and_a_bad_reply_is_told(repeat: str) -> None:
    episode, _ = await play(OPENENV, ["?", "wrong", "word3!"], task=task(), url=repeat, parse=f"{__name__}:parse")
    assert said(episode, 2) == "Error: say a word"
    assert said(episode, 4).startswith("Error: word: Field required")
    assert (episode.reward, episode.turns) == (1.0, 3)


async def test_too_many_bad_replies_truncate(repeat: str) -> None:
    options = {"url": repeat, "parse": f"{__name__}:parse", "max_invalid": 1}
    episode, _ = await play(OPENENV, lambda messages: "?", task=task(), **options)
    assert (episode.stop_reason, episode.reward, episode.turns) == ("truncated", 0.0, 2)


async def test_what_the_environment_raises_fails_the_episode_or_is_told(repeat: str) -> None:
    failed, _ = await play(OPENENV, ["boom"], task=task(), url=repeat)
    told, _ = await play(OPENENV, ["boom", "word3"], task=task(), url=repeat, errors_to_policy=True)
    assert (failed.stop_reason, failed.reward) == ("env_error", None)
    assert "it broke (EXECUTION_ERROR)" in str(failed.error)
    assert (said(told, 2), told.reward) == ("Error: it broke", 1.0)


async def test_a_slow_server_is_a_timeout_without_a_reward(repeat: str) -> None:
    episode, _ = await play(OPENENV, ["sleep"], task=task(), url=repeat, timeout_s=0.5)
    assert (episode.stop_reason, episode.reward) == ("env_timeout", None)


async def test_the_limit_is_an_answers_and_not_the_episodes(repeat: str) -> None:
    async def slow(messages: list[Message]) -> str:
        await asyncio.sleep(1.2)
        return "no"

    episode, _ = await play(OPENENV, slow, task=task(), url=repeat, timeout_s=2.0)
    assert (episode.stop_reason, episode.turns) == ("done", 2)


async def test_a_server_that_is_not_there_is_no_wrong_answer() -> None:
    episode, _ = await play(OPENENV, ["word3"], task=task(), url="http://127.0.0.1:9")
    assert (episode.stop_reason, episode.reward) == ("env_error", None)


async def test_a_server_that_dies_in_an_episode_is_no_wrong_answer() -> None:
    with serving(create_app(Repeat, Word, Heard)) as (url, server):

        def policy(messages: list[Message]) -> str:
            server.should_exit = server.force_exit = True
            wait_for(lambda: not server.server_state.connections)
            return "word3"

        episode, _ = await play(OPENENV, policy, task=task(), url=url)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)


async def test_a_full_server_says_so() -> None:
    with serving(create_app(Repeat, Word, Heard, max_concurrent_envs=1)) as (url, _):
        async with GenericEnvClient(base_url=url) as other:
            await other.reset()
            episode, _ = await play(OPENENV, ["word3"], task=task(), url=url)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "(CAPACITY_REACHED)" in str(episode.error)


def test_an_episode_frees_its_environment_at_the_server() -> None:
    with serving(create_app(Repeat, Word, Heard)) as (url, _):
        before = Repeat.closed
        asyncio.run(play(OPENENV, ["word3"], task=task(), url=url))
        wait_for(lambda: Repeat.closed == before + 1)


async def test_an_action_of_several_fields_is_a_tool() -> None:
    with serving(create_app(Bisect, Guess, Heard, max_concurrent_envs=4)) as (url, _):
        replies = [call("act", '{"low": -1, "high": 9}'), "five", call("act", '{"low": 5, "high": 9}'),
                   call("act", '{"low": 5, "high": 5}')]  # fmt: skip
        episode, session = await play(OPENENV, replies, task=task(), url=url)
    [tool] = session.tools
    assert set(tool["function"]["parameters"]["properties"]) == {"low", "high"}
    assert said(episode, 2).startswith("Error: low: Input should be greater than or equal to 0")
    assert said(episode, 4) == "Error: act by calling the tool act"
    assert said(episode, 6) == "5..9"
    assert (episode.stop_reason, episode.reward) == ("done", 1.0)


async def test_mcp_environments_offer_their_tools() -> None:
    with serving(create_app(Tools, CallToolAction, CallToolObservation, max_concurrent_envs=4)) as (url, _):
        replies = [call("double", '{"number": 4}'), call("double", '{"number": "x"}'), call("halve", "{}"), "8"]
        episode, session = await play(OPENENV, replies, task=task(), url=url, prompt="Double 4.")
    assert [tool["function"]["name"] for tool in session.tools] == ["double"]
    assert [said(episode, 0), said(episode, 2)] == ["Double 4.", "8"]
    assert said(episode, 4).startswith("Error: ")
    assert said(episode, 6) == "Error: unknown tool 'halve'"
    assert (episode.stop_reason, episode.reward) == ("done", None)


# Outwards


class Twice(agentrl.ToolEnv):
    """Double a number with a tool."""

    closed = 0

    @classmethod
    def tasks(cls, split: str, seed: int) -> Any:
        return [Task(id=f"{split}{number}", options={"number": number}) for number in range(3)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.number = int((options or {}).get("number", seed))
        return [agentrl.user(f"Double {self.number}.")], {}

    @agentrl.tool
    def double(self, number: int) -> int:
        """Twice the number."""
        if number > 1000:
            raise agentrl.EnvironmentFault("the doubling service is down")
        return 2 * number

    def score(self, message: Message) -> float | None:
        return None if message.text == "pass" else float(message.text == str(2 * self.number))

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture(scope="module")
def twice() -> Iterator[str]:
    with serving(openenv_app(f"{__name__}:Twice", max_sessions=2)) as (url, _):
        yield url


def test_openenvs_own_client_plays_an_episode_of_ours(twice: str) -> None:
    with GenericEnvClient(base_url=twice).sync() as client:
        first = client.reset(seed=21)
        assert first.observation["messages"] == [{"role": "user", "content": "Double 21."}]
        assert [tool["function"]["name"] for tool in first.observation["tools"]] == ["double"]
        assert (first.reward, first.done) == (None, False)
        second = client.step({"tool_calls": call("double", '{"number": 21}').tool_calls})
        assert [message["content"] for message in second.observation["messages"]] == ["42"]
        assert (second.reward, second.done) == (0.0, False)
        assert client.state()["step_count"] == 1
        last = client.step({"content": "42"})
        assert (last.reward, last.done) == (1.0, True)
        assert client.reset(seed=1).observation["messages"] == [{"role": "user", "content": "Double 1."}]
        assert client.step({"content": "3"}).reward == 0.0


def test_a_missing_reward_stays_missing_on_the_wire(twice: str) -> None:
    with GenericEnvClient(base_url=twice).sync() as client:
        client.reset(seed=1)
        assert (client.step({"content": "pass"}).reward, client.state()["task_id"]) == (None, "seed-1")


def test_tasks_are_named_by_split_and_index(twice: str) -> None:
    with GenericEnvClient(base_url=twice).sync() as client:
        assert client.reset(split="eval", index=2).observation["messages"][0]["content"] == "Double 2."
        assert client.state()["task_id"] == "eval2"
        with pytest.raises(RuntimeError, match="has 3 tasks, and none of index 3"):
            client.reset(split="eval", index=3)


def test_bad_messages_are_refused_in_words_and_the_session_goes_on(twice: str) -> None:
    with GenericEnvClient(base_url=twice).sync() as client:
        with pytest.raises(RuntimeError, match="reset first"):
            client.step({"content": "42"})
        client.reset(seed=21)
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            client.step({"word": "42"})
        assert client.step({"content": "42"}).reward == 1.0
        with pytest.raises(RuntimeError, match="reset first"):
            client.step({"content": "42"})


async def test_what_is_no_json_is_answered_and_the_session_goes_on(twice: str) -> None:
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{twice}/ws") as socket:
        for junk in ("{", "[1]", '"reset"'):
            await socket.send_str(junk)
            assert (await socket.receive_json())["data"]["code"] == "INVALID_JSON"
        await socket.send_bytes(b"{}")
        assert (await socket.receive_json())["data"]["code"] == "INVALID_JSON"
        await socket.send_json({"type": "dance"})
        assert (await socket.receive_json())["data"]["code"] == "UNKNOWN_TYPE"
        await socket.send_json({"type": "reset", "data": {"seed": 3}})
        assert (await socket.receive_json())["type"] == "observation"


def test_a_fault_of_ours_is_an_error_and_no_reward(twice: str) -> None:
    with GenericEnvClient(base_url=twice).sync() as client:
        client.reset(seed=21)
        with pytest.raises(RuntimeError, match="the doubling service is down"):
            client.step({"tool_calls": call("double", '{"number": 2000}').tool_calls})
        assert client.reset(seed=1).done is False


def test_sessions_are_capped_and_free_their_environments(twice: str) -> None:
    clients = [GenericEnvClient(base_url=twice).sync() for _ in range(2)]
    for client in clients:
        client.reset(seed=1)
    before = Twice.closed
    with pytest.raises(RuntimeError, match="all of 2 sessions are in use"):
        GenericEnvClient(base_url=twice).sync().reset(seed=1)
    for client in clients:
        client.close()
    wait_for(lambda: Twice.closed == before + 2)
    with GenericEnvClient(base_url=twice).sync() as client:
        client.reset(seed=1)


def test_a_silent_session_ends() -> None:
    with serving(openenv_app(f"{__name__}:Twice", max_sessions=1, idle_timeout_s=1.0)) as (url, _):
        before = Twice.closed
        with GenericEnvClient(base_url=url).sync() as client:
            client.reset(seed=1)
            wait_for(lambda: Twice.closed == before + 1)


def test_the_key_is_asked_for_and_web_pages_are_turned_away(twice: str) -> None:
    def resets(url: str, **headers: str) -> bool:
        try:
            with GenericEnvClient(base_url=url, headers=headers).sync() as client:
                client.reset(seed=1)
        except ConnectionError:
            return False
        return True

    with serving(openenv_app(f"{__name__}:Twice", key="s3cret")) as (url, _):
        assert resets(url, Authorization="Bearer s3cret")
        assert not resets(url, Authorization="Bearer other")
        assert not resets(url)
    assert not resets(twice, Origin="http://evil.example")
    assert resets(twice)


async def test_our_client_at_our_server_loses_nothing(twice: str) -> None:
    replies = [call("double", '{"number": 21}'), "42"]
    direct, there = await play(f"{__name__}:Twice", list(replies), task=task(21))
    served, here = await play(OPENENV, list(replies), task=task(21), url=twice)
    assert served.messages == direct.messages
    assert (served.reward, served.stop_reason) == (direct.reward, direct.stop_reason) == (1.0, "done")
    assert here.tools == there.tools
    missing, _ = await play(OPENENV, ["pass"], task=task(21), url=twice)
    assert (missing.stop_reason, missing.reward) == ("done", None)
