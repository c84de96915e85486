"""MCP servers as tools, with mcp's own server: over a pipe and over HTTP, with limits, and nothing left behind."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from adapter_episode import ADAPTERS, call, play, said

import agentrl
from agentrl.env import registry
from agentrl.env.adapters import mcp as adapter
from agentrl.types import Task

MCP = f"{ADAPTERS}:MCP"
SERVER = str(Path(__file__).parent / "mcp_counter_server.py")
STDIO: dict[str, Any] = {"servers": {"command": [sys.executable, SERVER]}}
ASKED = Task(id="t", env_id=MCP, seed=4, options={"prompt": "Add 2 and 3.", "answer": "5"})


@pytest.fixture(scope="module")
def http_server() -> Iterator[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)])
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield {"servers": {"url": f"http://127.0.0.1:{port}/mcp"}}
    process.kill()
    process.wait()


async def test_tools_are_offered_as_openai_describes_them(http_server: dict[str, Any]) -> None:
    _, session = await play(MCP, ["5"], task=ASKED, hidden=["die"], **http_server)
    [add] = [tool for tool in session.tools if tool["function"]["name"] == "add"]
    assert add["type"] == "function"
    assert add["function"]["description"] == "Add to the counter and return it."
    assert add["function"]["parameters"]["properties"]["amount"]["type"] == "integer"
    assert add["function"]["parameters"]["required"] == ["amount"]
    assert "die" not in {tool["function"]["name"] for tool in session.tools}


async def test_a_right_answer_is_worth_1_and_a_wrong_one_0(http_server: dict[str, Any]) -> None:
    adding = [call("add", '{"amount": 2}'), call("add", '{"amount": 3}')]
    right, _ = await play(MCP, [*adding, "5"], task=ASKED, **STDIO)
    wrong, _ = await play(MCP, ["6"], task=ASKED, **http_server)
    assert [said(right, index) for index in (0, 2, 4)] == ["Add 2 and 3.", "2", "5"]
    assert (right.stop_reason, right.reward) == ("done", 1.0)
    assert (wrong.stop_reason, wrong.reward) == ("done", 0.0)


async def test_without_an_answer_the_reward_is_missing(http_server: dict[str, Any]) -> None:
    episode, _ = await play(MCP, ["5"], prompt="Add.", **http_server)
    assert (episode.stop_reason, episode.reward) == ("done", None)


async def test_calls_of_one_message_are_all_answered(http_server: dict[str, Any]) -> None:
    both = agentrl.assistant(
        None, tool_calls=[*call("pid", "{}", "a").tool_calls, *call("refuse", "{}", "b").tool_calls]
    )
    episode, _ = await play(MCP, [both, "5"], task=ASKED, **http_server)
    assert [message.get("tool_call_id") for message in episode.messages[2:4]] == ["a", "b"]


async def test_what_is_wrong_with_a_call_is_told_and_the_episode_goes_on() -> None:
    bad = [
        (call("refuse", "{}"), "Error: Error executing tool refuse: not today"),
        (call("add", '{"amount": "x"}'), "Error: Error executing tool add: "),
        (call("add", "{"), "Error: the arguments are not valid JSON"),
        (call("no_such_tool", "{}"), "Error: unknown tool 'no_such_tool'"),
        (call("grade", '{"answer": "5"}'), "Error: unknown tool 'grade'"),
        (call("wait", "{}"), "Error: wait took longer than 3 s"),
        (call("add", '{"amount": 5}'), "5"),
    ]
    options = {"hidden": ["grade"], "call_timeout_s": 3, **STDIO}
    episode, _ = await play(MCP, [*(message for message, _ in bad), "5"], task=ASKED, **options)
    answers = [said(episode, index) for index in range(2, 2 + 2 * len(bad), 2)]
    assert [answer[: len(told)] for answer, (_, told) in zip(answers, bad, strict=True)] == [told for _, told in bad]
    assert (episode.stop_reason, episode.reward) == ("done", 1.0)


async def test_a_server_that_dies_fails_the_episode_with_its_last_words() -> None:
    episode, _ = await play(MCP, [call("die", "{}"), "5"], task=ASKED, **STDIO)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "was lost in a call of die; its last words: goodbye" in str(episode.error)


async def test_a_picture_is_a_content_part(http_server: dict[str, Any]) -> None:
    episode, _ = await play(MCP, [call("picture", "{}"), "5"], task=ASKED, **http_server)
    [part] = episode.messages[2]["content"]
    assert part["image_url"]["url"].startswith("data:image/png;base64,iVBOR")


async def test_a_servers_own_tools_begin_and_score_an_episode(http_server: dict[str, Any]) -> None:
    options = {"reset_tool": "begin", "score_tool": "grade", **http_server}
    task = Task(id="t", env_id=MCP, seed=7, options={"target": 9})
    right, session = await play(MCP, [call("add", '{"amount": 8}'), "9"], task=task, **options)
    wrong, _ = await play(MCP, ["9"], task=task, **options)
    assert said(right, 0) == "Make the counter 9."
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert not {"begin", "grade"} & {tool["function"]["name"] for tool in session.tools}


async def test_one_round_too_many_truncates_the_episode_and_is_scored(http_server: dict[str, Any]) -> None:
    asking = call("pid", "{}")
    episode, _ = await play(MCP, lambda messages: asking, task=ASKED, max_rounds=2, **http_server)
    assert (episode.stop_reason, episode.turns, episode.reward) == ("truncated", 3, 0.0)


async def test_each_episode_has_a_server_of_its_own() -> None:
    for _ in range(2):
        episode, _ = await play(MCP, [call("add", '{"amount": 1}'), "1"], task=ASKED, **STDIO)
        assert said(episode, 2) == "1"


async def test_no_process_is_left_of_a_server_not_even_one_that_left_its_group() -> None:
    episode, _ = await play(MCP, [call("spawn", "{}"), call("pid", "{}"), "5"], task=ASKED, **STDIO)
    started = [int(said(episode, 2)), int(said(episode, 4))]
    assert [pid for pid in started if _lives(pid)] == []


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_a_shared_server_serves_every_episode_and_is_replaced_when_it_died() -> None:
    shared = {**STDIO, "shared": True}
    try:
        pids = []
        for _ in range(2):
            episode, _ = await play(MCP, [call("pid", "{}"), "5"], task=ASKED, **shared)
            pids.append(said(episode, 2))
        died, _ = await play(MCP, [call("die", "{}"), "5"], task=ASKED, **shared)
        after, _ = await play(MCP, [call("pid", "{}"), "5"], task=ASKED, **shared)
        assert pids[0] == pids[1] != said(after, 2)
        assert died.reward is None
    finally:
        await asyncio.to_thread(adapter._SHARED.close)
    assert not _lives(int(said(after, 2)))


async def test_a_server_over_http(http_server: dict[str, Any]) -> None:
    options = {**http_server, "reset_tool": "begin"}
    episode, _ = await play(MCP, [call("add", '{"amount": 5}'), call("refuse", "{}"), "5"], task=ASKED, **options)
    assert [said(episode, index) for index in (2, 4)] == ["5", "Error: Error executing tool refuse: not today"]
    assert episode.reward == 1.0


async def test_a_slow_call_over_http_is_told(http_server: dict[str, Any]) -> None:
    episode, _ = await play(MCP, [call("wait", "{}"), "5"], task=ASKED, call_timeout_s=0.5, **http_server)
    assert (said(episode, 2), episode.reward) == ("Error: wait took longer than 0.5 s", 1.0)


async def test_a_server_over_http_that_is_not_there_is_no_wrong_answer() -> None:
    episode, _ = await play(MCP, ["5"], task=ASKED, servers={"url": "http://127.0.0.1:9/mcp"})
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "the MCP server http://127.0.0.1:9/mcp cannot be used" in str(episode.error)


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ({"command": ["no-such-program-here"]}, "cannot be used: FileNotFoundError"),
        ({"command": [sys.executable, "-c", "import sys; sys.exit('no module')"]}, "its last words: no module"),
        ({"command": [sys.executable, "-c", "import time; time.sleep(60)"]}, "was not ready within 1 s"),
    ],
)
async def test_a_server_that_does_not_start_is_no_wrong_answer(servers: Any, said: str) -> None:
    episode, _ = await play(MCP, ["5"], task=ASKED, servers=servers, start_timeout_s=1 if "1 s" in said else 20)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert said in str(episode.error)


async def test_two_servers_with_one_tool_are_told(http_server: dict[str, Any]) -> None:
    episode, _ = await play(MCP, ["5"], task=ASKED, servers=[http_server["servers"]] * 2)
    assert "two MCP servers have a tool called 'add'" in str(episode.error)


async def test_a_tool_that_is_named_and_is_not_there_is_told(http_server: dict[str, Any]) -> None:
    episode, _ = await play(MCP, ["5"], score_tool="judge", prompt="?", **http_server)
    assert "no MCP server has a tool called 'judge'; there are add, " in str(episode.error)


@pytest.mark.parametrize("servers", [{}, {"command": ["x"], "url": "http://x"}, [], {"url": "http://x", "header_env":
                                     {"Authorization": "AGENTRL_NO_SUCH_VARIABLE"}}])  # fmt: skip
def test_servers_that_cannot_be_are_a_config_error(servers: Any) -> None:
    with pytest.raises(agentrl.ConfigError, match="MCP"):
        registry.make(MCP, servers=servers)


def test_it_works_without_an_event_loop_too(http_server: dict[str, Any]) -> None:
    env = registry.make(MCP, **http_server)
    env.reset(seed=0, options=ASKED.options)
    observation, *_ = env.step(call("refuse", "{}"))
    assert observation[0].text == "Error: Error executing tool refuse: not today"
    assert env.step("5")[1] == 1.0
    env.close()
