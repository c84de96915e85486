"""A verifiers taskset: sums, one turn, with a tool, or with a user who asks twice. Named `verifiers_sums`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

__all__ = ["SumsEnv", "SumsTaskset"]


class SumsTaskConfig(vf.TaskConfig):
    tools: bool = False


class SumsConfig(vf.TasksetConfig):
    count: int = 20
    kind: str = "single"  # "tools", "talk" or "broken"
    task: SumsTaskConfig = SumsTaskConfig()


class SumsData(vf.TaskData):
    total: int
    kind: str


class Adder(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = "adder"

    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        if a < 0:
            raise ValueError("no negative numbers")
        return str(a + b)


class SumsTask(vf.Task[SumsData, vf.State, SumsTaskConfig]):
    @classmethod
    def toolsets(cls, config: SumsTaskConfig) -> list[Any]:
        return [Adder(vf.ToolsetConfig())] if config.tools else []

    @vf.reward(weight=1.0)
    async def right(self, trace: Any) -> float:
        if self.data.kind == "broken":
            raise RuntimeError("the rubric is broken")
        return float(str(self.data.total) in (trace.last_reply or ""))

    @vf.reward(weight=0.5)
    async def short(self, trace: Any) -> float:
        return float(len(trace.last_reply or "") < 10)


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self) -> Iterable[SumsTask]:
        for number in range(self.config.count):
            prompt = None if self.config.kind == "talk" else f"What is {number}+1?"
            data = SumsData(prompt=prompt, system_prompt="Add.", total=number + 1, kind=self.config.kind)
            yield SumsTask(data, self.config.task)


class SumsEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class SumsEnv(vf.Env[SumsEnvConfig]):
    """A user who asks, and doubts the first answer."""

    async def run(self, task: Any, agents: Any) -> None:
        if task.data.kind != "talk":
            await agents.agent.run(task)
            return
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn(f"What is {task.data.total - 1}+1?")
            if not segment.terminated:
                await interaction.turn("Are you sure?")


if __name__ == "__main__":  # verifiers starts a toolset's server as `python -m` of its module
    Adder.run()
