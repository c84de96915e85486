"""Asks the engines behind a gateway how busy they are."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp

from agentrl.errors import EngineUnavailable
from agentrl.rollout.adaptive import Load

KV_USE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREEMPTIONS = "vllm:num_preemptions_total"
GATEWAY_WAITING = "agentrl_gateway_waiting"
TIMEOUT_S = 5.0


def parse(text: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    """The values of these metrics, one for each set of labels, in Prometheus' text form. No number is no value."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in found:
            value = line[len(name) :].rpartition("}")[2].split()
            with contextlib.suppress(ValueError, IndexError):
                found[name].append(float(value[0]))
    return found


class EngineLoad:
    """The load of the engines that the gateway has now. Belongs to one event loop."""

    def __init__(self, gateway_url: str, admin_key: str, engine_key: str | None) -> None:
        self._gateway_url = gateway_url.rstrip("/")
        self._admin_key = admin_key
        self._engine_key = engine_key
        self._client: aiohttp.ClientSession | None = None

    async def read(self) -> Load:
        """Raises EngineUnavailable when not one engine told; those that do not are left out."""
        try:
            async with self._get(f"{self._gateway_url}/engines", self._admin_key) as response:
                urls = [engine["url"] for engine in (await response.json())["engines"]]
            waiting = parse(await self._text(self._gateway_url, self._admin_key), (GATEWAY_WAITING,))[GATEWAY_WAITING]
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            raise EngineUnavailable(f"the gateway does not tell its engines: {error!r}") from error
        told = await asyncio.gather(*(self._of_engine(url) for url in urls))
        loads = [load for load in told if load is not None]
        if not loads:
            raise EngineUnavailable(f"none of {len(urls)} engines tells its load at /metrics")
        return Load(
            kv_use=max(load.kv_use for load in loads),
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads) + int(sum(waiting)),
            preemptions=sum(load.preemptions for load in loads),
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _of_engine(self, url: str) -> Load | None:
        try:
            found = parse(await self._text(url, self._engine_key), (KV_USE, RUNNING, WAITING, PREEMPTIONS))
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        if not found[KV_USE]:
            return None
        return Load(
            kv_use=max(found[KV_USE]),
            running=int(sum(found[RUNNING])),
            waiting=int(sum(found[WAITING])),
            preemptions=int(sum(found[PREEMPTIONS])),
        )

    async def _text(self, url: str, key: str | None) -> str:
        async with self._get(f"{url.rstrip('/')}/metrics", key) as response:
            return await response.text()

    def _get(self, url: str, key: str | None) -> aiohttp.client._RequestContextManager:
        if self._client is None:
            self._client = aiohttp.ClientSession(trust_env=False, raise_for_status=True)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return self._client.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
