"""`ToolEnv`: an environment whose actions call tools until the policy answers."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from agentrl.env.base import Env, ResetResult, StepResult
from agentrl.env.bridge import bridge, is_async, run_to_end
from agentrl.env.space import as_action
from agentrl.env.threads import HUNG_TOOLS, CallThread
from agentrl.env.tool import Tool, ToolError, error_text, result_text, tools_of
from agentrl.errors import EnvironmentFault, EnvironmentTimeout
from agentrl.messages import Message
from agentrl.messages import tool as tool_message


class ToolEnv(Env):
    """Subclasses give `reset`, methods marked `@agentrl.tool`, and `score(message)`.

    Each assistant message with tool calls is answered by one tool message per call, in order. The calls run in order
    too, except that neighbours whose tools are `parallel` (`@agentrl.tool`) run at the same time. Whatever is wrong
    with a call (arguments that are not a JSON object or do not fit, an unknown tool, an exception, a timeout) is told
    to the policy as "Error: ..." and the episode goes on. Only an `EnvironmentFault` ends it: raise one when the tool
    itself is broken. A message without calls ends the episode and is scored.
    """

    max_rounds: ClassVar[int] = 32
    """Messages with tool calls that are answered; one more truncates the episode, and is scored."""

    _rounds = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Seeds `self.np_random`. Call it first: `super().reset(seed=seed)`."""
        super().reset(seed=seed, options=options)
        self._rounds = 0
        return [], {}

    def score(self, message: Message) -> float | Awaitable[float | None] | None:
        """The reward of the last message; plain or `async def`. None is missing: a reward service gives it."""
        return None

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [described.schema for described in tools_of(type(self)).values()]

    def step(self, action: Message | str) -> StepResult:
        advancing = self._advance(as_action(action))
        result: StepResult = bridge(advancing) if self._has_async_parts else run_to_end(advancing)
        return result

    def is_async(self, method: str) -> bool:
        if method == "step" and type(self).step is ToolEnv.step:
            return self._has_async_parts
        return super().is_async(method)

    @property
    def _has_async_parts(self) -> bool:
        tools = tools_of(type(self)).values()
        return is_async(self.score) or any(described.is_async or described.parallel for described in tools)

    async def _advance(self, message: Message) -> StepResult:
        calls = message.tool_calls
        if not calls or self._rounds >= self.max_rounds:
            reward = self.score(message)
            if isinstance(reward, Awaitable):
                reward = await reward
            return [], None if reward is None else float(reward), not calls, bool(calls), {}
        self._rounds += 1
        return await self._answer_all(calls), 0.0, False, False, {}

    async def _answer_all(self, calls: list[dict[str, Any]]) -> list[Message]:
        if not self._has_async_parts:  # nothing may suspend here: see `run_to_end`
            return [await self._answer(call) for call in calls]
        answers: list[Message] = []
        for parallel, group in itertools.groupby(calls, self._is_parallel):
            neighbours = list(group)
            for together in [neighbours] if parallel else [[call] for call in neighbours]:
                answers += await self._answer_together(together)
        return answers

    async def _answer_together(self, calls: list[dict[str, Any]]) -> list[Message]:
        """Every call ends before a fault is raised, so none is left running behind the environment's back."""
        outcomes = await asyncio.gather(*map(self._answer, calls), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    def _is_parallel(self, call: dict[str, Any]) -> bool:
        described = tools_of(type(self)).get(str((call.get("function") or {}).get("name")))
        return described is not None and described.parallel

    async def _answer(self, call: dict[str, Any]) -> Message:
        function = call.get("function") or {}
        name = str(function.get("name"))
        try:
            described = tools_of(type(self)).get(name)
            if described is None:
                raise ToolError(f"unknown tool {name!r}")
            arguments = described.parse(function.get("arguments"))
            text = result_text(
                await self._run(described, functools.partial(getattr(self, described.attribute), **arguments))
            )
        except EnvironmentFault:
            raise
        except Exception as error:
            text = error_text(error)
        return tool_message(_sendable(text), tool_call_id=str(call.get("id", "")))

    async def _run(self, described: Tool, call: Callable[[], Any]) -> Any:
        if not described.is_async:
            return await self._run_plain(described, call)
        try:
            async with asyncio.timeout(described.timeout_s) as scope:
                return await call()
        except TimeoutError:
            if scope.expired():
                raise ToolError(f"{described.name} took longer than {described.timeout_s:g} s") from None
            raise

    async def _run_plain(self, described: Tool, call: Callable[[], Any]) -> Any:
        """In place where it may block and has no time limit, else in a thread of its own."""
        if not self._has_async_parts and described.timeout_s is None:
            return call()
        thread = CallThread(f"agentrl-tool-{described.name}", HUNG_TOOLS)
        try:
            if self._has_async_parts:
                return await thread.run(call, described.timeout_s, described.name)
            return thread.run_blocking(call, described.timeout_s, described.name)
        except EnvironmentTimeout as error:
            raise ToolError(str(error)) from None
        finally:
            thread.close()


def _sendable(text: str) -> str:
    """Without lone surrogates, which arguments in JSON may hold (`"\\ud800"`) and no message can."""
    return text.encode("utf-8", "replace").decode()
