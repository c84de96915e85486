"""A client of one reward service: batched, bounded, tried again only where that can help."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

import httpx
import orjson
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from agentrl.errors import ConfigError, RewardError
from agentrl.retry import backoff, retry_after
from agentrl.reward.config import ServiceConfig
from agentrl.reward.protocol import Item, Score, openrlhf_body, read_answer, read_openrlhf, request_body

log = logging.getLogger(__name__)


class Outage(RewardError):
    """The service failed or could not be reached. May pass; `retry_after` is its wish, in seconds."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after_s


class RewardClient:
    """Belongs to one event loop. Raises ConfigError when the variable of `auth_env` is not set."""

    def __init__(self, service: ServiceConfig) -> None:
        self.service = service
        self._slots = asyncio.Semaphore(service.concurrency)
        limits = httpx.Limits(max_connections=service.concurrency, max_keepalive_connections=service.concurrency)
        self._http = httpx.AsyncClient(
            headers=_auth(service), limits=limits, timeout=service.timeout_s, trust_env=False
        )

    async def score(self, items: Sequence[Item]) -> dict[str, Score]:
        """A score for every item, by id. A failure is the `error` of the items that it cost, never an exception."""
        size = self.service.batch_size
        batches = [list(items[start : start + size]) for start in range(0, len(items), size)]
        scored = await asyncio.gather(*(self._score_batch(batch) for batch in batches))
        return {item_id: score for scores in scored for item_id, score in scores.items()}

    async def request(self, items: Sequence[Item], *, max_attempts: int | None = None) -> dict[str, Score]:
        """One batch. Raises Outage after the last attempt, RewardError for an answer that no retry would better."""
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(Outage),
            stop=stop_after_attempt(max_attempts or self.service.max_attempts),
            wait=backoff,
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                async with self._slots:
                    return await self._request_once(items)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def check(self) -> None:
        """Raises RewardError when the service's health check fails."""
        url = self.service.url.rstrip("/") + "/health"
        try:
            async with asyncio.timeout(self.service.timeout_s):
                response = await self._http.get(url)
        except (httpx.HTTPError, TimeoutError) as error:
            reason = str(error) or f"no answer within {self.service.timeout_s:g} s"
            raise RewardError(
                f"reward service {self.service.name} does not answer at {url} ({reason}); start it or correct its url"
            ) from error
        if response.status_code >= 400:
            raise RewardError(f"reward service {self.service.name} is not healthy: {url} gave {response.status_code}")

    async def close(self) -> None:
        await self._http.aclose()

    async def _score_batch(self, items: list[Item]) -> dict[str, Score]:
        try:
            return await self.request(items)
        except Outage as error:
            if error.status is not None and error.status != 429 and len(items) > 1:
                # It is up and fails on this batch: perhaps on one item, which must not cost the others.
                return await self._score_singly(items)
            return self._all_failed(items, error)
        except RewardError as error:
            return self._all_failed(items, error)

    async def _score_singly(self, items: list[Item]) -> dict[str, Score]:
        async def one(item: Item) -> dict[str, Score]:
            try:
                return await self.request([item], max_attempts=1)
            except RewardError as error:
                return self._all_failed([item], error)

        scored = await asyncio.gather(*map(one, items))
        return {item_id: score for scores in scored for item_id, score in scores.items()}

    def _all_failed(self, items: Sequence[Item], error: RewardError) -> dict[str, Score]:
        log.warning("%s; %d episodes are left without its reward", error, len(items))
        return {item.id: Score(id=item.id, error=str(error)) for item in items}

    async def _request_once(self, items: Sequence[Item]) -> dict[str, Score]:
        name, openrlhf = self.service.name, self.service.protocol == "openrlhf"
        url = self.service.url if openrlhf else self.service.url.rstrip("/") + "/score"
        body = orjson.dumps(openrlhf_body(items) if openrlhf else request_body(items))
        try:
            # httpx bounds each read; this bounds the whole, for a server that trickles.
            async with asyncio.timeout(self.service.timeout_s):
                response = await self._http.post(url, content=body, headers={"Content-Type": "application/json"})
        except (httpx.TimeoutException, TimeoutError) as error:
            raise Outage(f"reward service {name} did not answer within {self.service.timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise Outage(f"reward service {name} at {url}: {type(error).__name__}: {error}") from error
        status = response.status_code
        if status >= 500 or status == 429:
            wait = retry_after(response.headers.get("Retry-After"))
            raise Outage(f"reward service {name} answered {status}", status=status, retry_after_s=wait)
        if status >= 300:
            raise RewardError(f"reward service {name} refused the request with {status}: {response.text[:200]}")
        return (read_openrlhf if openrlhf else read_answer)(name, items, response.content)


def _auth(service: ServiceConfig) -> dict[str, str]:
    if service.auth_env is None:
        return {}
    token = os.environ.get(service.auth_env)
    if not token:
        raise ConfigError(
            f"reward service {service.name} needs the environment variable {service.auth_env}, which is not set"
        )
    return {"Authorization": f"Bearer {token}"}
