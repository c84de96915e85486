"""One request to the service that is checked, and what came back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from agentrl.errors import RewardError
from agentrl.reward.protocol import Item, Score, read_answer, request_body


class Answer(Struct, frozen=True, kw_only=True):
    """`status` is None when there was no answer at all, and `problem` says why."""

    status: int | None
    data: bytes = b""
    seconds: float = 0.0
    problem: str = ""

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    def told(self) -> str:
        """For a sentence: `answered 500: …`, or why there was no answer."""
        if self.status is None:
            return self.problem
        return f"answered {self.status}" + (f": {self.data[:120].decode(errors='replace')!r}" if not self.ok else "")


class Asking:
    """Use as an async context manager."""

    def __init__(
        self, url: str, *, key: str | None, timeout_s: float, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(
            headers=headers, timeout=timeout_s, limits=limits, trust_env=False, transport=transport
        )

    async def __aenter__(self) -> Asking:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def score(self, items: Sequence[Item]) -> Answer:
        return await self.post(msgspec.json.encode(request_body(items)))

    async def scores(self, items: Sequence[Item]) -> dict[str, Score]:
        """By id. Raises RewardError for whatever is not an answer in full."""
        answer = await self.score(items)
        if not answer.ok:
            raise RewardError(answer.told())
        return read_answer("", items, answer.data)

    async def post(self, body: bytes, *, headers: dict[str, str] | None = None) -> Answer:
        content = {"Content-Type": "application/json"} | (headers or {})
        return await self._ask("POST", "/score", content=body, headers=content)

    async def get(self, path: str, timeout_s: float | None = None) -> Answer:
        return await self._ask("GET", path, timeout_s=timeout_s)

    async def _ask(self, method: str, path: str, *, timeout_s: float | None = None, **options: Any) -> Answer:
        limit = timeout_s or self.timeout_s
        started = time.perf_counter()
        try:
            async with asyncio.timeout(limit):
                response = await self._http.request(method, f"{self.url}{path}", **options)
        except (TimeoutError, httpx.TimeoutException):
            return Answer(status=None, problem=f"gave no answer within {limit:g} s")
        except httpx.HTTPError as error:
            return Answer(status=None, problem=f"could not be asked ({type(error).__name__}: {error})")
        return Answer(status=response.status_code, data=response.content, seconds=time.perf_counter() - started)


def as_json(data: bytes) -> Any:
    """None for what is not JSON. NaN and Infinity, which Python writes, are read."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
