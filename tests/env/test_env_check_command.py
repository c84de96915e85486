"""`agentrl env check` as a command: what it prints, its exit status, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from agentrl.assets import EMBEDDED
from agentrl.cli.env import env_app
from agentrl.env.check.analysis import findings
from agentrl.env.check.records import CallRecord, EpisodeRecord, Place, Recording, Subject
from agentrl.env.check.runner import record
from agentrl.errors import AgentRLError, ConfigError

PLANTED = Path(__file__).parent / "planted"
CLEAN, FAULTY = f"{PLANTED}/clean_tools.py:Planted", f"{PLANTED}/not_finite.py:Planted"


def check(*arguments: str, status: int) -> Any:
    done = CliRunner().invoke(env_app, ["check", *arguments], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done


def test_a_clean_environment_gets_a_table_of_costs_and_status_0() -> None:
    done = check(CLEAN, "--tasks", "1", "--tokenizer", EMBEDDED, status=0)
    assert done.stdout.rstrip().endswith("nothing found")
    assert "with its reference solution" in done.stdout
    assert any(line.split()[:1] == ["step"] for line in done.stdout.splitlines())
    assert "playing each policy" in done.stderr


def test_a_fault_is_printed_with_its_line_and_fix_and_gives_status_1() -> None:
    said = check(FAULTY, "--tasks", "1", status=1).stdout
    assert "error reward-not-finite" in said
    assert "not_finite.py:11" in said
    assert "fix: give a finite number, or None when it is missing" in said
    assert "1 error, 0 warnings; docs/env-check.md explains each" in said


def test_the_report_is_json_when_it_is_asked_for() -> None:
    report = json.loads(check(FAULTY, "--tasks", "1", "--json", status=1).stdout)
    (finding,) = report["findings"]
    assert (report["errors"], report["warnings"]) == (1, 0)
    assert finding["code"] == "reward-not-finite"
    assert (Path(finding["place"]["file"]).name, finding["place"]["line"]) == ("not_finite.py", 11)
    assert {cost["method"] for cost in report["costs"]} == {"__init__", "reset", "step", "close"}


def test_an_id_that_names_nothing_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        check("no_such_file.py:Mine", status=2)


def test_a_file_that_imports_what_is_not_there_is_a_finding_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import agentrl\nimport not_installed_anywhere\n")
    said = check(f"{tmp_path}/mine.py:Mine", status=1).stdout
    assert "error cannot-be-made" in said
    assert "mine.py:2" in said
    assert "No module named 'not_installed_anywhere'" in said


OPTIONS = """
import agentrl

class Mine(agentrl.ToolEnv):
    \"\"\"Says a word.\"\"\"

    def __init__(self, word, times=1):
        self.word, self.times = word, times

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user(" ".join([self.word] * self.times) + (options or {}).get("mark", "."))], {}

    def score(self, message):
        return 0.0
"""


def test_constructor_arguments_and_rows_of_a_file_reach_the_environment(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OPTIONS)
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "mark": "!"}\n{"id": "b", "mark": "?"}\n')
    options = {"word": "yes", "times": 2}
    found = record(f"{tmp_path}/mine.py:Mine", options=options, tasks=1, task_file=tmp_path / "rows.jsonl")
    asked = {
        (call.observation or [{}])[0].get("content")
        for episode in found.of("alone")
        for call in episode.calls
        if call.method == "reset"
    }
    assert len(asked) == 1
    assert asked <= {"yes yes!", "yes yes?"}
    assert {reading.split for reading in found.tasks} == {"train"}


WAITS = """
import os, subprocess, time
import agentrl

class Mine(agentrl.ToolEnv):
    def reset(self, *, seed=None, options=None):
        program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        with open(os.environ["PIDS"], "w") as file:
            file.write(f"{os.getpid()} {program.pid} ")
        time.sleep(1000)
"""


def waits(tmp_path: Path) -> tuple[str, Path]:
    (tmp_path / "mine.py").write_text(WAITS)
    return f"{tmp_path}/mine.py:Mine", tmp_path / "pids"


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def until(condition: Any, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_nothing_that_the_environment_started_outlives_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_id, pids = waits(tmp_path)
    monkeypatch.setenv("PIDS", str(pids))
    finding, *_ = findings(record(env_id, tasks=1, timeout_s=1.0))
    assert (finding.code, finding.place and finding.place.line) == ("hang", 10)
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_nothing_is_left_either_when_the_command_is_killed(tmp_path: Path) -> None:
    env_id, pids = waits(tmp_path)
    code = "from agentrl.cli.main import main; main()"
    command = [sys.executable, "-c", code, "env", "check", env_id, "--timeout", "500"]
    with subprocess.Popen(command, env={**os.environ, "PIDS": str(pids)}, stderr=subprocess.DEVNULL) as process:
        until(lambda: pids.exists() and pids.read_text().endswith(" "))
        process.send_signal(signal.SIGKILL)
    until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


class Refuses(AgentRLError):
    pass


def conversation(*roles: str) -> Recording:
    observation = [{"role": role, "content": role} for role in roles]
    calls = [
        CallRecord(method="reset", observation=[{"role": "user", "content": "begin"}]),
        CallRecord(
            method="step", action={"role": "assistant", "content": "x"}, observation=observation, reward=0.0,
            reward_kind="number",
        ),
        CallRecord(
            method="step", action={"role": "assistant", "content": "x"}, observation=[], reward=0.0,
            reward_kind="number", terminated=True,
        ),
    ]  # fmt: skip
    played = EpisodeRecord(kind="alone", task_id="t", policy="silent", calls=calls, ended=True)
    places = {"step": Place("mine.py", 7)}
    return Recording(env_id="e", subject=Subject(name="E", documented=True, places=places), episodes=[played])


def test_a_template_that_refuses_a_conversation_or_rewrites_it_is_told() -> None:
    def letters(messages: Any, tools: Any) -> list[int]:
        if any(message["role"] == "tool" for message in messages):
            raise Refuses("no tools here")
        return [ord(letter) for message in messages for letter in message["content"]]

    def rewritten(messages: Any, tools: Any) -> list[int]:
        return [len(messages), *letters(messages, tools)]

    assert findings(conversation("user"), letters) == []
    (refused,) = findings(conversation("tool"), letters)
    assert (refused.code, refused.place) == ("template-refuses", Place("mine.py", 7))
    assert "no tools here" in refused.message
    (changed,) = findings(conversation("user"), rewritten)
    assert (changed.code, changed.severity) == ("prefix-changes", "warning")
    assert "the first 6 tokens otherwise, from 0 on" in changed.message
