"""The model that judges: any OpenAI-compatible endpoint, or the policy itself through an agentrl gateway."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from agentrl.errors import ConfigError, RewardError
from agentrl.messages import Message
from agentrl.retry import backoff, retry_after
from agentrl.reward.service import GATEWAY_KEY, GATEWAY_URL

logger = logging.getLogger(__name__)

ATTEMPTS = 4
PASSING = (408, 429, 500, 502, 503, 504)


class _Passing(RewardError):
    """May be better at another try. `retry_after` is the server's wish, in seconds."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after_s


class JudgeModel:
    """`ask` gives the text of one answer. Belongs to one event loop."""

    def __init__(self, *, url: str, model: str, key: str | None, timeout_s: float, concurrency: int) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self._key = key
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._http = httpx.AsyncClient(timeout=timeout_s, limits=limits, trust_env=False)

    async def ask(self, messages: Sequence[Message], **options: Any) -> str:
        """Raises RewardError when no answer can be had."""
        return await self._chat(self.url, self._key, messages, options)

    async def close(self) -> None:
        await self._http.aclose()

    async def _chat(self, base: str, key: str | None, messages: Sequence[Message], options: dict[str, Any]) -> str:
        body = {"model": self.model, "messages": list(messages), **options}
        answer = await self._post(f"{base}/chat/completions", body, key)
        try:
            return str(answer["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError):
            raise RewardError(f"{base} answered no chat completion: {answer!r:.200}") from None

    async def _post(self, url: str, body: dict[str, Any], key: str | None) -> Any:
        passing = AsyncRetrying(
            retry=retry_if_exception_type(_Passing), stop=stop_after_attempt(ATTEMPTS), wait=backoff, reraise=True
        )
        try:
            return await passing(self._post_once, url, body, key)
        except _Passing as error:
            raise RewardError(f"the judge's model failed {ATTEMPTS} times, at last with: {error}") from error

    async def _post_once(self, url: str, body: dict[str, Any], key: str | None) -> Any:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            response = await self._http.post(url, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise _Passing(f"{url}: {type(error).__name__}: {error}") from error
        if response.is_success:
            return response.json()
        problem = f"{url} answered {response.status_code}: {response.text[:200]}"
        if response.status_code not in PASSING:
            raise RewardError(f"the judge's model failed: {problem}")
        raise _Passing(problem, retry_after(response.headers.get("Retry-After")))


class GatewayModel(JudgeModel):
    """Each answer comes from a session of its own in mode `eval`, which no trainer takes and no weight swap ends."""

    async def ask(self, messages: Sequence[Message], **options: Any) -> str:
        wanted = {"mode": "eval", "across_swaps": True, "metadata": {"purpose": "judge"}}
        opened = await self._post(f"{self.url}/sessions", wanted, self._key)
        try:
            return await self._chat(opened["base_url"], opened["api_key"], messages, options)
        finally:
            await self._finish(opened["session_id"])

    async def _finish(self, session_id: str) -> None:
        """A session that cannot be finished costs no verdict: the gateway seals it when it has been idle."""
        try:
            await self._post(f"{self.url}/sessions/{session_id}/finish", {"stop_reason": "done"}, self._key)
        except RewardError as error:
            logger.warning("the judge's session %s stays open: %s", session_id, error)


def make_model(
    *, url: str | None, model: str | None, key_env: str | None, timeout_s: float, concurrency: int
) -> JudgeModel:
    """The endpoint at `url`; without one, the run's own gateway. Raises ConfigError when there is neither."""
    if url is not None:
        if model is None:
            raise ConfigError("the judge is given a url and no model; name the one that the endpoint is to use")
        key = os.environ.get(key_env) if key_env is not None else None
        if key_env is not None and not key:
            raise ConfigError(f"the environment variable {key_env}, which is to hold the endpoint's key, is not set")
        return JudgeModel(url=url, model=model, key=key, timeout_s=timeout_s, concurrency=concurrency)
    gateway, key = os.environ.get(GATEWAY_URL), os.environ.get(GATEWAY_KEY)
    if not gateway or not key:
        raise ConfigError(
            "the judge has no model: give --option url=… and --option model=…, or let a run start it "
            f'(start = "judge"), which sets {GATEWAY_URL} and {GATEWAY_KEY}'
        )
    return GatewayModel(url=gateway, model="policy", key=key, timeout_s=timeout_s, concurrency=concurrency)
