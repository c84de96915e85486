"""Commands as agents, against the real gateway with a scripted engine: their variables, their end, their grading."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from living import lives
from tokenizers import Tokenizer

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import Fault, ScriptedEngine
from agentrl.env import registry
from agentrl.env.command import Command
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.memory import MemoryStore
from agentrl.types import Episode, Limits, Task

MODEL = resolve_model(EMBEDDED)
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
SAYS_SIX = [*TOKENIZER.encode("6", add_special_tokens=False).ids, TOKENIZER.token_to_id("<|im_end|>")]
ID = "agentrl.env.command:Command"
TASK = Task(id="t1", env_id=ID, seed=3, options={"question": "2*3", "answer": "6"})

ASK = """
import json, os, sys, urllib.request
def ask(text):
    body = json.dumps({"model": os.environ["AGENTRL_MODEL"], "messages": [{"role": "user", "content": text}]})
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", ASK + textwrap.dedent(code)]


def grade(task: Task, output: str) -> float:
    return float(output.strip() == task.options["answer"])


GRADE = f"{__name__}:grade"


@asynccontextmanager
async def gateway(**settings: Any) -> AsyncIterator[tuple[GatewayServer, ScriptedEngine, MemoryStore]]:
    store = MemoryStore()
    async with ScriptedEngine(lambda prompt, sampling, version: SAYS_SIX) as engine:
        server = GatewayServer(
            GatewayConfig(engine_urls=(engine.url,), **settings),
            renderer=Renderer.load(MODEL),
            engine_factory=HttpEngineClient,
            sink=store,
        )
        await server.start()
        try:
            yield server, engine, store
        finally:
            await server.stop()


async def play(server: GatewayServer, options: dict[str, Any], *, task: Task = TASK, **config: Any) -> Episode:
    settings = RolloutConfig(**{"episode_retries": 0, **config})
    worker = RolloutWorker(settings, server.url, server.admin_key, env_kwargs=options)
    try:
        group = await worker.run_group("g0", task, size=1, version=0)
    finally:
        await worker.close()
    return group.episodes[0]


async def attempt(options: dict[str, Any], *, task: Task = TASK, **config: Any) -> Episode:
    async with gateway() as (server, _, _):
        return await play(server, options, task=task, **config)


async def test_a_command_asks_the_policy_and_what_it_prints_is_graded() -> None:
    options = {"command": python('print(ask(json.load(sys.stdin)["options"]["question"]))'), "grade": GRADE}
    async with gateway() as (server, _, store):
        episode = await play(server, options)
        assert (episode.stop_reason, episode.reward, episode.turns, episode.error) == ("done", 1.0, 1, None)
        assert [message["content"] for message in episode.messages] == ["2*3", "6"]
        saved = store.get(episode.session_id)
        assert (saved.reward, saved.stop_reason, saved.metadata) == (1.0, "done", {"group_id": "g0", "index": 0})
        (row,) = saved.rows
        assert [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask] == SAYS_SIX


async def test_the_task_is_on_standard_input_and_in_a_file_without_what_is_hidden() -> None:
    code = """
    told = sys.stdin.read()
    assert told == open(os.environ["AGENTRL_TASK_FILE"]).read()
    task = json.loads(told)
    print(task["id"], task["seed"], sorted(task["options"]))
    """
    options = {"command": python(code), "grade": f"{__name__}:is_told_its_task"}
    assert (await attempt(options)).reward == 1.0


def is_told_its_task(task: Task, output: str) -> float:
    assert task.options["answer"] == "6", "the grader sees all of it"
    return float(output == "t1 3 ['question']\n")


async def test_a_command_sees_what_it_needs_of_our_variables_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    monkeypatch.setenv("PASSED", "p")
    code = 'print("A_SECRET" in os.environ, os.environ["PASSED"], os.environ["OWN"], os.environ["HOME"] != "")'
    options = {"command": python(code), "pass_env": ["PASSED"], "env": {"OWN": "o"}, "grade": f"{__name__}:is_clean"}
    assert (await attempt(options)).reward == 1.0


def is_clean(task: Task, output: str) -> float:
    return float(output == "False p o True\n")


# Grading


GRADER = """
import json, os, sys
given = json.load(sys.stdin)
leaks = [name for name in os.environ if name.startswith(("OPENAI", "ANTHROPIC", "AGENTRL_ROLE", "AGENTRL_MODEL"))]
assert not leaks, leaks
print("a line of its own")
print(json.dumps({"right": float(given["output"].strip() == given["task"]["options"]["answer"])}))
"""


async def test_a_grading_command_runs_without_the_policys_variables() -> None:
    grader = [sys.executable, "-c", GRADER]
    async with gateway() as (server, _, store):
        episode = await play(server, {"command": python('print(ask("2*3"))'), "grade": grader})
        assert (episode.stop_reason, episode.reward, episode.error) == ("done", 1.0, None)
        assert store.get(episode.session_id).components == {"right": 1.0}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('no key')", "exited with status 1; its standard error ends in: no key"),
        ("print('much')", "printed no reward but 'much"),
        ("", "printed no reward"),
        ("print('NaN')", "gave the reward nan"),
        ("print('[1]')", "gave a reward of type list"),
    ],
)
async def test_a_grading_command_that_gives_no_reward_makes_it_missing_and_is_named(code: str, said: str) -> None:
    episode = await attempt({"command": python("pass"), "grade": [sys.executable, "-c", code]})
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert said in (episode.error or "")


async def test_a_grader_may_say_that_there_is_no_reward() -> None:
    episode = await attempt({"command": python("pass"), "grade": [sys.executable, "-c", "print('null')"]})
    assert (episode.stop_reason, episode.reward) == ("done", None)


async def test_without_a_grader_the_reward_is_missing() -> None:
    episode = await attempt({"command": python("print(1.0)")})
    assert (episode.stop_reason, episode.reward) == ("done", None)


async def test_a_grading_command_has_a_time_limit() -> None:
    grader = [sys.executable, "-c", "import time; time.sleep(600)"]
    episode = await attempt({"command": python("pass"), "grade": grader, "grade_timeout_s": 0.3})
    assert (episode.stop_reason, episode.reward) == ("env_timeout", None)


# Its end


LEAVES_CHILDREN = """
import subprocess, time
children = [subprocess.Popen(["sleep", "600"], start_new_session=new) for new in (False, True)]
if os.fork() == 0:  # and one whose parent is gone, in a session of its own
    os.setsid()
    if os.fork():
        os._exit(0)
    open(os.environ["PIDS"] + ".orphan", "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists(os.environ["PIDS"] + ".orphan") or not open(os.environ["PIDS"] + ".orphan").read():
    time.sleep(0.01)
orphan = open(os.environ["PIDS"] + ".orphan").read()
open(os.environ["PIDS"], "w").write(" ".join([orphan, str(os.getpid()), *(str(child.pid) for child in children)]))
"""


async def _none_lives(pids: Path) -> None:
    numbers = [int(pid) for pid in pids.read_text().split()]
    assert len(numbers) == 4
    deadline = time.monotonic() + 10
    while any(map(lives, numbers)):  # killed; the kernel may not be through with them
        assert time.monotonic() < deadline, [psutil.Process(pid).cmdline() for pid in numbers if lives(pid)]
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("ending", "config", "stop_reason"),
    [
        ("pass", {}, "done"),
        ("sys.exit(3)", {}, "env_error"),
        ("time.sleep(600)", {"timeout_s": 4.0}, "env_timeout"),
    ],
)
async def test_when_it_ends_everything_that_it_started_is_killed(
    tmp_path: Path, ending: str, config: dict[str, Any], stop_reason: str
) -> None:
    """Children in its process group, in sessions of their own, and an orphan."""
    options = {"command": python(LEAVES_CHILDREN + ending), "env": {"PIDS": str(tmp_path / "pids")}, **config}
    assert (await attempt(options)).stop_reason == stop_reason
    await _none_lives(tmp_path / "pids")


async def test_the_deadline_of_the_episode_kills_all_of_it(tmp_path: Path) -> None:
    options = {"command": python(LEAVES_CHILDREN + "time.sleep(600)"), "env": {"PIDS": str(tmp_path / "pids")}}
    episode = await attempt(options, deadline_s=4.0)
    assert (episode.stop_reason, episode.reward) == ("deadline", None)
    await _none_lives(tmp_path / "pids")


async def test_cancelling_kills_all_of_it_and_seals_the_session(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    options = {"command": python(LEAVES_CHILDREN + "time.sleep(600)"), "env": {"PIDS": str(pids)}}
    async with gateway() as (server, _, store):
        playing = asyncio.create_task(play(server, options))
        async with asyncio.timeout(30):
            while not pids.exists() or len(pids.read_text().split()) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await _none_lives(pids)
        assert [saved.stop_reason for saved in store.iterate()] == ["cancelled"]


async def test_a_failure_says_how_standard_error_ends_and_never_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="agentrl")
    code = 'print("key", os.environ["OPENAI_API_KEY"]); sys.exit("no " + os.environ["ANTHROPIC_API_KEY"] + " today")'
    episode = await attempt({"command": python(code)})
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert f"{sys.executable} exited with status 1; its standard error ends in: no [key] today" in (episode.error or "")
    assert "key [key]" in caplog.text
    assert "sk-" not in caplog.text


async def test_the_key_is_in_no_argument(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    code = f'open({str(seen)!r}, "w").write(open("/proc/self/cmdline").read() + os.environ["OPENAI_API_KEY"])'
    await attempt({"command": python(code)})
    arguments, _, key = seen.read_text().rpartition("\0")
    assert len(key) > 20
    assert key not in arguments


async def test_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    evil = f"; touch {tmp_path}/made $(touch {tmp_path}/made)"
    options = {"command": [*python('print(ask("2*3"), len(sys.argv[1]))'), evil], "grade": f"{__name__}:any_output"}
    assert (await attempt(options)).reward == float(len(evil))
    assert os.listdir(tmp_path) == []


def any_output(task: Task, output: str) -> float:
    return float(output.split()[-1])


async def test_output_without_end_is_capped_at_its_end() -> None:
    code = "sys.stdout.write('x' * 3_000_000 + 'the end'); sys.stderr.write('y' * 3_000_000)"
    options = {"command": python(code), "max_output": 100, "grade": f"{__name__}:is_capped"}
    assert (await attempt(options)).reward == 1.0


def is_capped(task: Task, output: str) -> float:
    note, _, kept = output.partition("\n")
    return float(note == "[2999907 bytes left out]" and kept == "x" * 93 + "the end")


async def test_a_limit_of_the_episode_that_makes_a_command_fail_is_a_limit_and_is_graded() -> None:
    options = {"command": python('while True: ask("again")'), "grade": GRADE}
    episode = await attempt(options, max_turns=3)
    assert (episode.stop_reason, episode.reward, episode.turns, episode.error) == ("max_turns", 0.0, 3, None)


async def test_a_message_has_no_more_tokens_than_the_run_allows_it() -> None:
    async with gateway() as (server, _, store):
        options = {"command": python('print(ask("2*3"))'), "grade": GRADE}
        episode = await play(server, options, max_tokens=7)
        (call,) = store.get(episode.session_id).calls
        assert call.sampling.max_tokens == 7


async def test_the_limits_of_a_task_hold_too() -> None:
    task = Task(id="t1", env_id=ID, options=TASK.options, limits=Limits(max_calls=1))
    options = {"command": python('ask("a"); ask("b")'), "grade": GRADE}
    assert (await attempt(options, task=task, max_turns=3)).stop_reason == "max_turns"


async def test_an_outage_that_a_command_hides_is_never_a_wrong_answer() -> None:
    """Invariant 6."""
    code = """
    try:
        print(ask("2*3"))
    except Exception:
        print("I do not know")
    """
    async with gateway(engine_wait_s=0.05) as (server, engine, _):
        engine.fail_next(*[Fault(kind="refuse")] * 50)
        episode = await play(server, {"command": python(code), "grade": GRADE})
        assert (episode.stop_reason, episode.reward) == ("policy_error", None)


async def test_a_program_that_cannot_be_started_is_named() -> None:
    episode = await attempt({"command": ["no-such-program"]})
    assert episode.stop_reason == "env_error"
    assert "'no-such-program' cannot be started" in (episode.error or "")


# Its options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"command": "python agent.py"}, "give a list"),
        ({"command": []}, "give a list"),
        ({"command": ["sh", 3]}, "each part is a text"),
        ({"command": ["sh"], "grade": []}, "grade = []"),
        ({"command": ["sh"], "grade": "nowhere"}, "grader 'nowhere' is not of the form"),
        ({"command": ["sh"], "grade": "missing.py:grade"}, "there is no file"),
        ({"command": ["sh"], "timeout_s": 0}, "timeout_s = 0"),
    ],
)
def test_options_that_cannot_be_right_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Command(**options)
    assert said in str(refused.value)


def test_tasks_come_from_a_function_and_relative_paths_are_those_of_where_the_run_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "from agentrl import Task\ndef tasks(split, seed): return (Task(id=f'{split}-{n}') for n in range(seed, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    options = registry.placed(ID, {"command": ["sh"], "tasks": "my_tasks.py:tasks"})
    assert options["cwd"] == str(tmp_path)
    monkeypatch.chdir("/")
    found = registry.tasks(ID, split="eval", seed=1, env_kwargs=options)
    assert [(task.id, task.split, task.env_id) for task in found] == [("eval-1", "eval", ID), ("eval-2", "eval", ID)]
