"""`Command`: an agent program in whatever language, started with the policy in the variables that SDKs read.

[environment]
id = "agentrl.env.command:Command"
options = { command = ["node", "agent.mjs"], tasks = "tasks.py:tasks", grade = "tasks.py:grade" }
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from agentrl.env.policy import Policy, redacted, without_policy
from agentrl.env.process import Finished, run_process
from agentrl.env.program import Program
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import ConfigError, EnvironmentFault, EnvironmentTimeout
from agentrl.loading import load_from
from agentrl.types import Task

log = logging.getLogger(__name__)

INHERITED = (
    "AGENTRL_RUN_TAG",
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LOGNAME",
    "NODE_PATH",
    "PYTHONPATH",
    "SHELL",
    "TERM",
    "TZ",
    "USER",
)
TASK_FILE = "AGENTRL_TASK_FILE"
SHOWN = 2000
"""Characters of a program's output in a log line or an error."""

_GRADERS = HungCalls()


class Command(Program):
    """`command` is a program and its arguments; no shell reads them. It is given

    * the policy: `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `ANTHROPIC_BASE_URL`, … (`Policy.env`),
    * its task as JSON, on standard input and in the file that `AGENTRL_TASK_FILE` names,
    * a `TMPDIR` of its own, removed afterwards.

    What it writes to standard output is its result; exit status 0 is a success, any other a failure, whose episode
    has no reward. When it ends, what it has started is killed. `grade` runs after that, without those variables.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        tasks: str | None = None,
        grade: str | Sequence[str] | None = None,
        hidden: Sequence[str] = ("answer",),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        pass_env: Sequence[str] = (),
        timeout_s: float | None = None,
        grade_timeout_s: float = 60.0,
        max_output: int = 65536,
    ) -> None:
        """`tasks`: a function `module:tasks` or `file.py:tasks` from (split, seed) to tasks. `grade`: a function from
        (task, standard output) to a reward, or a command that is given both as JSON on standard input and prints the
        reward as JSON. `hidden`: options of a task that only the grader sees. `env`: further variables; `pass_env`:
        names of those to take over. `max_output`: bytes kept of each output.

        Raises ConfigError naming the option.
        """
        self._command = _argv("command", command)
        self._grade = grade if isinstance(grade, str) or grade is None else _argv("grade", grade)
        self._hidden = frozenset(hidden)
        self._cwd = cwd
        self._own_env = {str(name): str(value) for name, value in (env or {}).items()}
        self._pass_env = tuple(pass_env)
        self._timeout_s = _positive("timeout_s", timeout_s)
        self._grade_limit_s = _positive("grade_timeout_s", grade_timeout_s)
        self._max_output = max_output
        if isinstance(self._grade, str):
            _grader(self._grade, cwd)  # a name that leads nowhere is told before a run

    @classmethod
    def placed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Relative paths are those of where the run is started."""
        return {**options, "cwd": str(Path(str(options.get("cwd") or ".")).expanduser().resolve())}

    @classmethod
    def tasks(cls, split: str, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> Iterator[Task]:
        options = env_kwargs or {}
        named = options.get("tasks")
        if named is None:
            return super().tasks(split, seed)
        if not isinstance(named, str):
            raise ConfigError(f"tasks = {named!r}; give 'module:tasks' or 'file.py:tasks'")
        found: Iterator[Task] = load_from(named, options.get("cwd"), "task source")(split, seed)
        return found

    @property
    def grade_timeout_s(self) -> float | None:  # type: ignore[override]
        return self._grade_limit_s

    async def run(self, task: Task, policy: Policy) -> str:
        """Standard output. Raises EnvironmentTimeout, or EnvironmentFault with the end of standard error."""
        shown = {name: value for name, value in task.options.items() if name not in self._hidden}
        env = {**self._base_env(), **self._own_env, **policy.env()}
        ended = await self._start(self._command, msgspec.structs.replace(task, options=shown), env, self._timeout_s)
        keys = {policy.api_key, *(role.api_key for role in policy.roles.values())}
        stdout, stderr = redacted(ended.stdout, keys), redacted(ended.stderr, keys)
        log.info(
            "task %s: %s ended with status %s\nstdout: %s\nstderr: %s",
            task.id, self._command[0], ended.status, stdout[-SHOWN:], stderr[-SHOWN:],
        )  # fmt: skip
        if ended.status is None:
            raise EnvironmentTimeout(f"{self._command[0]} took longer than timeout_s = {self._timeout_s:g} s")
        if ended.status != 0:
            raise _failed(self._command[0], ended.status, stderr)
        return stdout

    async def grade(self, task: Task, result: Any) -> Any:
        output = result or ""
        if self._grade is None:
            return None
        if isinstance(self._grade, str):
            return await self._graded_by_function(self._grade, task, output)
        body = orjson.dumps({"task": msgspec.to_builtins(task), "output": output})
        env = without_policy({**self._base_env(), **self._own_env})
        ended = await self._start(self._grade, task, env, self._grade_limit_s, stdin=body)
        if ended.status is None:
            raise EnvironmentTimeout(f"the grader {self._grade[0]} took longer than {self._grade_limit_s:g} s")
        if ended.status != 0:
            raise _failed(f"the grader {self._grade[0]}", ended.status, ended.stderr)
        return _printed(self._grade[0], ended.stdout)

    async def _graded_by_function(self, name: str, task: Task, output: str) -> Any:
        function = _grader(name, self._cwd)
        if inspect.iscoroutinefunction(function):
            return await function(task, output)
        thread = CallThread(f"agentrl-grade-{name}", _GRADERS)
        try:
            return await thread.run(functools.partial(function, task, output), self._grade_limit_s, f"grade {name}")
        finally:
            thread.close()

    async def _start(
        self,
        argv: Sequence[str],
        task: Task,
        env: Mapping[str, str],
        timeout_s: float | None,
        stdin: bytes | None = None,
    ) -> Finished:
        document = orjson.dumps(msgspec.to_builtins(task))
        with tempfile.TemporaryDirectory(prefix="agentrl-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "task.json"
            path.write_bytes(document)
            return await run_process(
                argv,
                env={**env, TASK_FILE: str(path), "TMPDIR": folder},
                cwd=self._cwd,
                stdin=document if stdin is None else stdin,
                timeout_s=timeout_s,
                max_output=self._max_output,
            )

    def _base_env(self) -> dict[str, str]:
        """Of this process's variables only what programs need; its secrets are not theirs. This Python comes first."""
        names = {*INHERITED, *self._pass_env}
        kept = {name: value for name, value in os.environ.items() if name in names or name.startswith("LC_")}
        return {**kept, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])}


def _argv(option: str, value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ConfigError(f"{option} = {value!r}; give a list, the program first, for no shell reads it")
    if not all(isinstance(part, str) and "\0" not in part for part in value):
        raise ConfigError(f"{option} = {value!r}; each part is a text")
    return list(value)


def _positive(option: str, value: float | None) -> float | None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{option} = {value}; give a positive number of seconds")
    return value


def _grader(name: str, cwd: str | None) -> Callable[..., Any]:
    return load_from(name, cwd, "grader")


def _failed(name: str, status: int, stderr: str) -> EnvironmentFault:
    said = stderr.strip()[-SHOWN:]
    how = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
    return EnvironmentFault(f"{name} {how}" + (f"; its standard error ends in: {said}" if said else ""))


def _printed(name: str, output: str) -> Any:
    """The reward that a grader printed, on the last line that is not empty."""
    lines = [line for line in output.splitlines() if line.strip()]
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        raise EnvironmentFault(
            f"the grader {name} printed no reward but {output[-100:]!r}; print a number, an object of numbers, or null"
        ) from None
