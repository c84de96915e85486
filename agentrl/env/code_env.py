"""`CodeEnv`: an environment whose policy writes code, which runs in the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from agentrl.env.base import ResetResult
from agentrl.env.code_tests import CallTest, ProgramTest, TestReport, assertion_tests, run_tests
from agentrl.env.tool import ToolError, tool
from agentrl.env.tool_env import ToolEnv
from agentrl.sandbox import Sandbox, SandboxLimits, SandboxResult, default_sandbox
from agentrl.sandbox.base import NoRoom, Verdict, relative
from agentrl.sandbox.scratch import ScratchFolder

Language = Literal["python", "bash"]

NO_PROGRAM: Mapping[str, str] = MappingProxyType({})
_PROGRAM = ".program.py"  # hidden, so that it is not among the files that a policy lists

# A fence closes on a line of its own, with at least as many marks; one that the end of the answer cut off counts.
_BLOCK = re.compile(r"^ {0,3}(`{3,})[ \t]*([^\s`]*)[^\n`]*\n(.*?)(?:^ {0,3}\1`*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_ALIASES = {"python": {"python", "py", "python3", ""}, "bash": {"bash", "sh", "shell", ""}}


class CodeEnv(ToolEnv):
    """Subclasses give `reset` and `score(message)`, as for `ToolEnv`; the tools that run code are here.

    Each call of a tool is a program of its own: variables do not last, files in the work folder do, over an episode.
    What it printed, and in words how it ended, goes back as the tool message. Close the environment when done,
    which removes the work folder; that of a process that was killed is removed by the next one.
    """

    languages: ClassVar[tuple[Language, ...]] = ("python",)
    """The tools that are offered, by the language that they run; () for none, when only the answer holds code."""

    program_limits: ClassVar[SandboxLimits] = SandboxLimits()
    """What each program may use."""

    keeps_files: ClassVar[bool] = True
    """Whether the work folder lasts from call to call; otherwise each begins with the files of `place` only."""

    max_reply: ClassVar[int] = 4000
    """Characters of a tool message; of a longer output the beginning and the end are kept."""

    def __init__(self, sandbox: Sandbox | str | None = None) -> None:
        """`sandbox`: one, or the name of its kind ("docker", "unsafe", …), or this machine's when left out.

        Raises SandboxUnavailable when this machine does not have it.
        """
        self.sandbox = default_sandbox(sandbox) if sandbox is None or isinstance(sandbox, str) else sandbox
        self._placed: dict[str, str | bytes] = {}
        self._folder: ScratchFolder | None = None
        self._turn = asyncio.Lock()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Seeds `self.np_random` and empties the work folder. Call it first: `super().reset(seed=seed)`."""
        observation, info = super().reset(seed=seed, options=options)
        self._remove_folder()
        self._placed = {}
        self._turn = asyncio.Lock()
        return observation, info

    def close(self) -> None:
        self._remove_folder()

    def place(self, files: Mapping[str, str | bytes]) -> None:
        """Puts files into the work folder, by their path in it, before the policy's next program runs."""
        self._placed |= {relative(path): content for path, content in files.items()}

    async def run_program(self, argv: Sequence[str], *, stdin: str = "", collect: Sequence[str] = ()) -> SandboxResult:
        """A program in the episode's work folder, within `program_limits`: for tools of your own and for scoring."""
        return await self._in_folder(argv, stdin=stdin, collect=collect)

    async def run_tests(self, code: str, tests: Sequence[CallTest | ProgramTest]) -> TestReport:
        """Tests code of the policy, away from the work folder. It cannot forge the verdict: see `code_tests`."""
        return await run_tests(self.sandbox, code, tests, limits=self.program_limits)

    @property
    def tools(self) -> list[dict[str, Any]]:
        hidden = {"python", "bash"} - set(self.languages)
        return [described for described in super().tools if described["function"]["name"] not in hidden]

    @tool(parallel=False)
    async def python(self, code: str) -> str:
        """Run a Python program and read what it prints.

        Args:
            code: The program. Files that it writes to the current folder stay for the next one.
        """
        self._require("python")
        result = await self._in_folder(["python3", _PROGRAM], program={_PROGRAM: code})
        return reply(result, self.max_reply)

    @tool(parallel=False)
    async def bash(self, command: str) -> str:
        """Run a bash command and read what it prints.

        Args:
            command: The command, or a script of several lines.
        """
        self._require("bash")
        return reply(await self.run_program(["bash", "-c", command]), self.max_reply)

    async def _in_folder(
        self,
        argv: Sequence[str],
        *,
        program: Mapping[str, str] = NO_PROGRAM,
        stdin: str = "",
        collect: Sequence[str] = (),
    ) -> SandboxResult:
        async with self._turn:  # one at a time: they share the folder
            workspace, placed = self._workspace(), self._placed
            files = {**placed, **program}
            try:
                result = await self.sandbox.run(
                    argv, files=files, stdin=stdin, limits=self.program_limits, workspace=workspace, collect=collect
                )
            except NoRoom as error:  # the policy's own doing, so a result; what was placed is still to come
                return SandboxResult(verdict=Verdict.DISK, reason=str(error))
            if workspace is not None:  # what was placed is in the folder now, and the policy may have removed it
                self._placed = {path: content for path, content in self._placed.items() if path not in placed}
                for path in program:
                    with contextlib.suppress(OSError):
                        (workspace / path).unlink()
            return result

    def _require(self, language: Language) -> None:
        if language not in self.languages:
            raise ToolError(f"unknown tool {language!r}")

    def _workspace(self) -> Path | None:
        if not self.keeps_files:
            return None
        if self._folder is None:
            self._folder = ScratchFolder()
            (self._folder.path / "work").mkdir()
        return self._folder.path / "work"

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove()


def code_block(text: str, language: Language = "python") -> str | None:
    """The last fenced block of a language, or without one, in an answer; None when there is none."""
    blocks = [body for _, named, body in _BLOCK.findall(text) if named.lower() in _ALIASES[language]]
    return blocks[-1] if blocks else None


def reply(result: SandboxResult, max_characters: int) -> str:
    """What a policy reads of a run: output, errors, and how it ended when that was not well."""
    parts = [result.stdout.rstrip("\n"), result.stderr.rstrip("\n")]
    ending = f"({result.reason})" if result.reason else ""
    text = "\n".join(part for part in parts if part)
    room = max(0, max_characters - len(ending) - 1)
    if len(text) > room:
        note = f"\n[{len(text) - room} characters left out]\n"
        kept = max(0, room - len(note))
        text = text[: kept - kept // 2] + note + text[len(text) - kept // 2 :]
    return "\n".join(part for part in (text, ending) if part) or "(no output)"


__all__ = ["CallTest", "CodeEnv", "ProgramTest", "TestReport", "assertion_tests", "code_block", "reply"]
