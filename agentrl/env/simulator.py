"""A simulated user: a model that plays the other side of the conversation. Its failure is never a wrong answer."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import aiohttp
import orjson
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from agentrl.env.bridge import bridge
from agentrl.env.policy import Policy
from agentrl.errors import AgentRLError, ConfigError, EnvironmentFault
from agentrl.messages import Message, assistant, system, user
from agentrl.retry import backoff, retry_after

GREETING = "Hello! How can I help you?"

Ask = Callable[[list[Message]], Awaitable[Message | str] | Message | str]
"""From the conversation as the simulated user sees it to what the user says next."""


class Busy(AgentRLError):
    """The endpoint may answer later. `retry_after` is its wish, in seconds."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after_s


class Simulator:
    """Made by `at` (any OpenAI-compatible endpoint), `of` (a role of a program's policy) or `scripted` (no model)."""

    def __init__(self, ask: Ask, *, persona: str | None = None, greeting: str = GREETING) -> None:
        """`persona` is the system prompt of the simulated user, `greeting` what it answers when it speaks first."""
        self._ask = ask
        self._persona = persona
        self._greeting = greeting

    @classmethod
    def at(
        cls,
        base_url: str,
        *,
        model: str,
        persona: str,
        key_env: str | None = "OPENAI_API_KEY",
        timeout_s: float = 30.0,
        attempts: int = 4,
        greeting: str = GREETING,
        **sampling: Any,
    ) -> Simulator:
        """A model at `base_url`, which ends in /v1. Its key is in the variable `key_env`, None where it needs none.

        Each of the `attempts` may take `timeout_s` seconds; all of them have to fit into what a step may take.
        `sampling` goes into the request (`temperature`, `max_tokens`, …). Raises ConfigError for a variable not set.
        """
        key = None if key_env is None else os.environ.get(key_env)
        if key_env is not None and not key:
            raise ConfigError(f"the simulated user's key is not set: export {key_env}, or give key_env = None")
        endpoint = _Endpoint(base_url, model, key, timeout_s, attempts, sampling)
        return cls(endpoint.ask, persona=persona, greeting=greeting)

    @classmethod
    def of(cls, policy: Policy, *, persona: str, greeting: str = GREETING) -> Simulator:
        """The policy plays the user, in a role with `train=False`: `Simulator.of(policy.role("user"), …)`."""
        return cls(lambda messages: policy.chat(messages), persona=persona, greeting=greeting)

    @classmethod
    def scripted(cls, replies: Iterable[str] | Ask) -> Simulator:
        """Says these, one after the other, or what a function makes of the conversation."""
        if callable(replies):
            return cls(replies)
        left = iter(replies)

        def next_one(messages: list[Message]) -> str:
            for reply in left:
                return reply
            raise EnvironmentFault("the scripted user has nothing left to say; end the episode, or give it more")

        return cls(next_one)

    def reply(self, conversation: Sequence[Mapping[str, Any]]) -> Awaitable[Message] | Any:
        """The user's next message, given the conversation as the policy sees it: `await simulator.reply(messages)`.

        In plain code, where there is nothing to await with, it returns the message itself. Raises EnvironmentFault
        when there is none: the episode then ends without a reward.
        """
        return bridge(self._reply(conversation))

    async def _reply(self, conversation: Sequence[Mapping[str, Any]]) -> Message:
        seen = as_the_user_sees_it(conversation, persona=self._persona, greeting=self._greeting)
        try:
            said = self._ask(seen)
            if inspect.isawaitable(said):
                said = await said
        except EnvironmentFault:
            raise
        except Exception as error:
            raise EnvironmentFault(f"the simulated user failed: {type(error).__name__}: {error}") from error
        text = said if isinstance(said, str) else said.text
        if not text.strip():
            raise EnvironmentFault("the simulated user said nothing; raise its max_tokens, or change its persona")
        return user(text)


def as_the_user_sees_it(
    conversation: Sequence[Mapping[str, Any]], *, persona: str | None, greeting: str = GREETING
) -> list[Message]:
    """The other side of a conversation: who was the user is the assistant. Instructions, tools and their results are
    the policy's own business, and left out."""
    seen = [] if persona is None else [system(persona)]
    spoken = [message for message in map(Message, conversation) if message.role in ("user", "assistant")]
    if not spoken or spoken[0].role == "user":
        seen.append(user(greeting))
    for message in spoken:
        if message.text:
            seen.append(assistant(message.text) if message.role == "user" else user(message.text))
    return seen


class _Endpoint:
    def __init__(
        self, base_url: str, model: str, key: str | None, timeout_s: float, attempts: int, sampling: Mapping[str, Any]
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._body = {"model": model, **sampling}
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._attempts = attempts

    async def ask(self, messages: list[Message]) -> Message:
        body = orjson.dumps({**self._body, "messages": messages})
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(Busy), stop=stop_after_attempt(self._attempts), wait=backoff, reraise=True
        )
        try:
            async for attempt in attempts:
                with attempt:
                    return await self._once(body)
        except Busy as error:
            raise EnvironmentFault(
                f"the simulated user did not answer in {self._attempts} attempts: {error}"
            ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, body: bytes) -> Message:
        """A connection of its own: calls come from whichever loop the environment has."""
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout, trust_env=False) as client,
                client.post(self._url, data=body, headers=self._headers) as response,
            ):
                data, status = await response.read(), response.status
                wait = retry_after(response.headers.get("Retry-After"))
        except TimeoutError as error:
            raise Busy(f"{self._url} took longer than {self._timeout.total:g} s") from error
        except aiohttp.ClientError as error:
            raise Busy(f"{self._url}: {type(error).__name__}: {error}") from error
        if status in (408, 409, 429) or status >= 500:
            raise Busy(f"{self._url} answered {status}", wait)
        try:
            answer = orjson.loads(data)
            if status >= 400:
                raise EnvironmentFault(f"{self._url} refused with {status}: {data[:200].decode(errors='replace')}")
            return Message(answer["choices"][0]["message"])
        except (ValueError, LookupError, TypeError) as error:
            shown = data[:200].decode(errors="replace")
            raise EnvironmentFault(f"{self._url} answered {status} and no chat completion: {shown}") from error
