"""`EngineControl`: the control calls of one vLLM server, for weight swaps and health."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from agentrl.engine.config import EngineTimeouts
from agentrl.engine.wire import version_of
from agentrl.errors import EngineUnavailable, SwapError
from agentrl.types import WeightGroup


class EngineControl:
    """One engine by URL. Every call has a timeout.

    Raises SwapError when the engine refuses, with its words, and EngineUnavailable when it does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        engine_id: str | None = None,
        timeouts: EngineTimeouts | None = None,
        key: str | None = None,
    ) -> None:
        """key: of a server that answers nobody without it."""
        self.url = url.rstrip("/")
        self.engine_id = engine_id or self.url
        self._timeouts = timeouts or EngineTimeouts()
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http: aiohttp.ClientSession | None = None

    async def healthy(self) -> bool:
        """Never raises."""
        try:
            await self._call("GET", "/health", self._timeouts.probe_s)
        except (EngineUnavailable, SwapError):
            return False
        return True

    async def version(self) -> int:
        info = await self._call("GET", "/weight_info", self._timeouts.probe_s)
        return version_of(info.get("weight_version"))

    async def pause(self, *, mode: str, clear_cache: bool) -> None:
        """vLLM's modes: `keep` freezes the requests in flight, `wait` lets them finish first, `abort` ends them.

        `clear_cache` forgets the prefix cache, and with `keep` the KV cache of the requests in flight: it is rebuilt
        when they resume.
        """
        limit_s = self._timeouts.drain_s if mode == "wait" else self._timeouts.swap_s
        query = {"mode": mode, "clear_cache": "true" if clear_cache else "false"}
        await self._call("POST", "/pause", limit_s, query=query)

    async def resume(self) -> None:
        await self._call("POST", "/resume", self._timeouts.swap_s)

    async def sleep(self, level: int) -> None:
        """Lets the requests in flight finish, then gives up the KV cache, and the weights: to the host's memory at
        level 1, for good at level 2. What comes meanwhile waits."""
        await self._call("POST", "/sleep", self._timeouts.drain_s, query={"level": str(level), "mode": "wait"})

    async def wake_up(self, part: str) -> None:
        """Takes back memory for the `weights` or the `kv_cache`. With both, the engine runs again; one that is awake
        stays so."""
        await self._call("POST", "/wake_up", self._timeouts.swap_s, query={"tags": part})

    async def start_weight_update(self) -> None:
        """Opens an update. One that a dead trainer left open is ended first."""
        try:
            await self._call("POST", "/start_weight_update", self._timeouts.swap_s)
        except SwapError:
            await self.abort_weight_update()
            await self._call("POST", "/start_weight_update", self._timeouts.swap_s)

    async def update_weights(self, group: WeightGroup) -> None:
        body = {"update_info": msgspec.to_builtins(group)}
        await self._call("POST", "/update_weights", self._timeouts.swap_s, body=body)

    async def finish_weight_update(self, version: int) -> None:
        body = {"weight_version": str(version)}
        await self._call("POST", "/finish_weight_update", self._timeouts.swap_s, body=body)

    async def abort_weight_update(self) -> None:
        """Ends an open update, if there is one and the engine still answers. The weights are mixed then. Never raises.

        vLLM has no such call; it ends an update whose `update_weights` fails, and `abort` makes it fail.
        """
        with suppress(EngineUnavailable, SwapError):
            await self._call("POST", "/update_weights", self._timeouts.probe_s, body={"update_info": {"abort": True}})

    async def reset_prefix_cache(self) -> None:
        """Raises SwapError also when requests in flight hold the cache."""
        answer = await self._call("POST", "/reset_prefix_cache", self._timeouts.swap_s)
        if not answer.get("success", True):
            raise SwapError(f"engine {self.engine_id} did not reset its prefix cache: requests in flight hold it")

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _call(
        self,
        method: str,
        path: str,
        limit_s: float,
        *,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        if self._http is None:
            # A connection for each call: uvicorn closes one after a 500 unannounced, and the next call would fail.
            connector = aiohttp.TCPConnector(force_close=True)
            self._http = aiohttp.ClientSession(connector=connector, headers=self._headers)
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=self._timeouts.connect_s)
        try:
            async with self._http.request(
                method, self.url + path, params=query, json=body, timeout=timeout
            ) as response:
                text = (await response.read()).decode(errors="replace")
        except TimeoutError as error:
            raise EngineUnavailable(f"engine {self.engine_id}{path} gave no answer in {limit_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"engine {self.engine_id}{path} cannot be reached: {error!r}") from error
        if response.status != 200:
            raise SwapError(f"engine {self.engine_id}{path} answered {response.status}: {text[:1000]}")
        try:
            return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
        except (msgspec.DecodeError, RecursionError) as error:
            raise SwapError(f"engine {self.engine_id}{path} answered no JSON object: {text[:200]!r}") from error
