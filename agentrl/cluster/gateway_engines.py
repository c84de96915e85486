"""The gateway's table of engines over its control API, across the death of the gateway."""

from __future__ import annotations

import time
from typing import Any

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from agentrl.errors import RunError

CONTROL_TIMEOUT_S = 60.0
PAUSE_MAX_S = 2.0


class GatewayEngines:
    """Every call may be made twice. One that does not reach the gateway is made again for `patience_s`."""

    def __init__(self, url: str, admin_key: str, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._urls: dict[str, str] = {}  # of the engines that the gateway was told of, by id
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {admin_key}"},
            timeout=CONTROL_TIMEOUT_S,
            trust_env=False,
        )

    async def show(self, engine_id: str, url: str, version: int) -> None:
        """An engine that is at another URL now takes the place of the old one."""
        told = {"version": version, "routable": True}
        if self._urls.get(engine_id) == url and await self._ask("PUT", f"/engines/{engine_id}", told, missing=True):
            return
        await self._ask("DELETE", f"/engines/{engine_id}", None, missing=True)
        await self._ask("POST", "/engines", {"url": url, "id": engine_id, "version": version}, there=True)
        self._urls[engine_id] = url

    async def withdraw(self, engine_id: str) -> None:
        """It stays known: a run's engines stay the run's, though none of them can be routed to."""
        await self._ask("PUT", f"/engines/{engine_id}", {"routable": False}, missing=True)

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, *, missing: bool = False, there: bool = False
    ) -> dict[str, Any] | None:
        """The answer. `missing` and `there`: a 404, or a 409, is fine too, and answers None."""
        response = await self._reach(method, path, body)
        if (missing and response.status_code == 404) or (there and response.status_code == 409):
            return None
        if response.is_error:
            raise RunError(f"the gateway answered {response.status_code} to {method} {path}: {response.text[:300]}")
        answer: dict[str, Any] = response.json() if response.content else {}
        return answer

    async def _reach(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(httpx.HTTPError),
            stop=stop_after_delay(self._patience_s),
            wait=wait_random_exponential(multiplier=0.1, max=PAUSE_MAX_S),
            reraise=True,
        )
        began = time.monotonic()
        try:
            async for attempt in attempts:
                with attempt:
                    return await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise RunError(
                f"the gateway did not take {method} {path} in {time.monotonic() - began:.0f} s: {error!r}; "
                "see logs/gateway.log"
            ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")
