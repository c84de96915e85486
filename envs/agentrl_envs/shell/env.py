"""A chore on a folder of files, done with a shell, scored by what the files are in the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import agentrl
from agentrl.env.base import ResetResult
from agentrl.env.code_env import reply
from agentrl.sandbox import SandboxLimits
from agentrl.sandbox.base import MiB
from agentrl_envs.shell.chores import Chore
from agentrl_envs.shell.reference import reference
from agentrl_envs.shell.tasks import given_problem, is_done, problem
from agentrl_envs.splits import distinct

PASS = 20_000
"""Tasks drawn in one pass over a split; those that repeat an instruction are left out."""

PROMPT = (
    "{instruction} Paths begin in the current folder. Leave all other files as they are, and say when you are done."
)


class Shell(agentrl.CodeEnv):
    """Reward 1 when exactly the right files are in the folder in the end, 0 otherwise."""

    max_rounds = 8
    languages = ()
    max_reply = 2000
    program_limits = SandboxLimits(
        wall_s=10, cpu_s=5, memory_bytes=256 * MiB, processes=32, disk_bytes=8 * MiB, disk_files=1000, output_bytes=8192
    )
    asked: Chore

    @classmethod
    def tasks(cls, split: str, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> Iterator[agentrl.Task]:
        """Tasks with different instructions; a fifth of all instructions is held out as "eval", by their hash."""
        return distinct(super().tasks(split, seed), lambda task: problem(task.seed, split).instruction, drawn=PASS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """The chore that `seed` stands for in the split `options["split"]` ("train" when it is not given).

        Or one of one's own: options "instruction", "files" and "expected", both content by path.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**53)) if seed is None else seed
        given = options or {}
        self.asked = given_problem(given) or problem(drawn, given.get("split", "train"))
        self.place(self.asked.before)
        return [agentrl.user(PROMPT.format(instruction=self.asked.instruction))], {}

    @agentrl.tool(parallel=False)
    async def run(self, command: str) -> str:
        """Run a bash command in the folder and read what it prints.

        Args:
            command: The command, or a script of several lines. It has ten seconds and no network.
        """
        return reply(await self.run_program(["bash", "-c", command]), self.max_reply)

    async def score(self, message: agentrl.Message) -> float:
        final = await self.run_program(["true"], collect=["**"])
        return float(is_done(self.asked, final.files))

    def reference(self, messages: Sequence[agentrl.Message]) -> agentrl.Message:
        """The solution of the current task, as a policy."""
        return reference(self.asked, messages)
