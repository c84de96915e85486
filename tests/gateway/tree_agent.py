"""An agent that carries out a random plan against a gateway, and remembers what it was given."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from tree_answers import streamed_choices, whole_choices
from tree_plans import Ask, Compact, Edit, Fork, Plan, Step, SubAgent, Swap, Together, tool
from tree_twin import World

Post = Callable[[bytes, Mapping[str, str], int | None], Awaitable[tuple[int, bytes] | None]]
"""(body, headers, rounds of the event loop until the client hangs up) → status and body; None: it hung up before."""

MAX_RETRIES = 2


@dataclass(frozen=True)
class Given:
    """One choice of a complete answer."""

    call_id: str
    prompt_ids: list[int] | None  # of the first choice
    token_ids: list[int]
    logprobs: list[float] | None
    message: dict[str, Any]
    finish_reason: str
    messages: list[dict[str, Any]]  # of the request
    tools: list[dict[str, Any]] | None
    stop: tuple[str, ...]
    must_extend: Given | None  # the answer that the conversation goes on from, unchanged


@dataclass
class Thread:
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    last: Given | None = None  # the answer that ends `messages`, when nothing was rewritten since

    def copy(self) -> Thread:
        return Thread(copy.deepcopy(self.messages), self.tools, self.last)


@dataclass
class Agent:
    post: Post
    world: World
    plan: Plan
    given: dict[str, Given] = field(default_factory=dict)  # by call id
    num_keys: int = 0  # idempotency keys
    refused: list[dict[str, Any]] = field(default_factory=list)  # error objects of answers below 500
    threads: list[Thread] = field(default_factory=list)

    async def act(self) -> None:
        self._begin(self.plan.system, self.plan.has_tools)
        for step in self.plan.steps:
            await self._do(step)
            self.world.replies.clear()

    async def _do(self, step: Step) -> None:
        match step:
            case Ask():
                await self._ask(step)
            case Together(asks):
                own = {ask.thread % len(self.threads): ask for ask in asks}
                await asyncio.gather(*(self._ask(ask) for ask in own.values()))
            case Edit():
                self._edit(self._thread(step.thread), step)
            case Compact(thread, text):
                found = self._thread(thread)
                kept = [m for m in found.messages if m["role"] == "system"]
                found.messages, found.last = [*kept, {"role": "user", "content": f"so far: {text}"}], None
            case Fork(thread):
                self.threads.append(self._thread(thread).copy())
            case SubAgent(system, has_tools):
                self._begin(system, has_tools)
            case Swap():
                self.world.swap()

    def _begin(self, system: str | None, has_tools: bool) -> None:
        messages = [] if system is None else [{"role": "system", "content": system}]
        self.threads.append(Thread(messages, [tool(self.plan.tool_text)] if has_tools else None))

    def _thread(self, number: int) -> Thread:
        return self.threads[number % len(self.threads)]

    def _edit(self, thread: Thread, edit: Edit) -> None:
        messages = thread.messages
        if edit.how == "arguments":
            for message in messages:
                for call in message.get("tool_calls") or ():
                    call["function"]["arguments"] = respaced(call["function"]["arguments"])
            return
        thread.last = None
        if edit.how == "thoughts":
            for message in messages:
                message.pop("reasoning_content", None)
        elif edit.how == "back":
            while messages and messages[-1]["role"] != "user":
                messages.pop()
            if messages:
                messages.pop()
            while messages and messages[-1]["role"] == "user":
                messages.pop()
        elif messages:
            messages[edit.at % len(messages)]["content"] = edit.text

    async def _ask(self, ask: Ask) -> None:
        thread = self._thread(ask.thread)
        before, last = copy.deepcopy(thread.messages), thread.last
        thread.messages += self._next(thread.messages, ask.text)
        sent = copy.deepcopy(thread.messages)
        self.world.replies += ask.replies
        body = orjson.dumps(self._body(thread, ask))
        answer = await self._delivered(body, ask)
        if isinstance(answer, str):
            thread.messages = before
            return
        choices = [
            Given(**choice, messages=sent, tools=thread.tools, stop=ask.stop, must_extend=last) for choice in answer
        ]
        self._keep(choices)
        chosen = choices[ask.pick % len(choices)]
        thread.messages.append(echoed(chosen.message, ask.echo))
        thread.last = chosen

    def _next(self, messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
        if messages and (calls := messages[-1].get("tool_calls")):
            return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
        if messages and messages[-1]["role"] in ("user", "tool"):
            return []  # it has not been answered yet
        return [{"role": "user", "content": text}]

    def _body(self, thread: Thread, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": thread.messages,
            "n": ask.n,
            "stream": ask.stream,
            "logprobs": True,
            "return_token_ids": True,
        }
        if thread.tools:
            body["tools"] = thread.tools
        if ask.max_tokens is not None:
            body["max_tokens"] = ask.max_tokens
        if ask.stop:
            body["stop"] = list(ask.stop)
        return body

    async def _delivered(self, body: bytes, ask: Ask) -> list[dict[str, Any]] | str:
        """The choices that the agent goes on with, or why there are none: lost or refused."""
        if ask.delivery == "raced":
            first = asyncio.create_task(self._sent(body, ask))
            for _ in range(ask.ticks):
                await asyncio.sleep(0)
            second = await self._sent(body, ask, {"x-stainless-retry-count": "1"})
            answer = await first
            if isinstance(second, list) and isinstance(answer, list) and ask.ticks >= 20:
                assert second == answer
            elif isinstance(second, list):
                self._keep_other(second, body, ask)
            return answer
        self.num_keys += 1
        headers = {"idempotency-key": f"key-{self.num_keys}"} if ask.delivery == "keyed" else {}
        leaves = ask.delivery in ("hung_up", "left")
        answer = await self._sent(body, ask, headers, hang_up=ask.ticks if leaves else None)
        if ask.delivery == "left":
            return answer
        if ask.delivery == "twice" and isinstance(answer, list):
            self._keep_other(answer, body, ask)
            answer = await self._sent(body, ask)
        count = 0
        while answer == "lost" and count < MAX_RETRIES:  # as SDKs do after a lost connection or a 5xx
            count += 1
            answer = await self._sent(body, ask, {"x-stainless-retry-count": str(count), **headers})
        if ask.delivery in ("repeated", "keyed") and isinstance(answer, list):
            again = await self._sent(body, ask, {"x-stainless-retry-count": str(count + 1), **headers})
            assert again == answer, "a request that was sent again got another answer"
        return answer

    async def _sent(
        self, body: bytes, ask: Ask, headers: Mapping[str, str] | None = None, hang_up: int | None = None
    ) -> list[dict[str, Any]] | str:
        response = await self.post(body, headers or {}, hang_up)
        if response is None:
            return "lost"
        status, data = response
        assert status != 500, data
        if status >= 500 or status == 429:
            return "lost"
        if status != 200:
            self.refused.append(json.loads(data)["error"])
            return "refused"
        return streamed_choices(data) if ask.stream else whole_choices(data)

    def _keep_other(self, answer: list[dict[str, Any]], body: bytes, ask: Ask) -> None:
        """An answer that the agent got and does not go on with."""
        request = json.loads(body)
        sent, tools = request["messages"], request.get("tools")
        self._keep([Given(**c, messages=sent, tools=tools, stop=ask.stop, must_extend=None) for c in answer])

    def _keep(self, choices: list[Given]) -> None:
        for choice in choices:
            self.given[choice.call_id] = choice


def respaced(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), indent=1)
    except ValueError:
        return arguments


def echoed(message: Mapping[str, Any], echo: str) -> dict[str, Any]:
    """The message as a client of this kind sends it back."""
    found = copy.deepcopy(dict(message))
    if echo == "no_reasoning":
        found.pop("reasoning_content", None)
    elif echo == "respaced":
        for call in found.get("tool_calls") or ():
            call["function"]["arguments"] = respaced(call["function"]["arguments"])
    elif echo == "parts" and found.get("content"):
        found["content"] = [{"type": "text", "text": found["content"]}]
    elif echo == "nulls":
        found |= {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    return found
