"""All engines of a run: one swap over them, and the gateway told who serves which version."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from agentrl.engine.control import EngineControl
from agentrl.engine.swap import WeightSwap
from agentrl.errors import RunError
from agentrl.types import SwapMode, SwapRecord

logger = logging.getLogger(__name__)

CONTROL_TIMEOUT_S = 60.0


class EngineFleet:
    """The run's `agentrl.train.ports.Engines`.

    The gateway hears of a version only after the engine itself confirmed it, and routes nothing to an engine that
    missed one (invariant 4).
    """

    def __init__(
        self,
        controls: Sequence[EngineControl],
        *,
        mode: SwapMode,
        gateway_url: str,
        admin_key: str,
        record: Callable[[SwapRecord], None],
    ) -> None:
        """`record` writes the swap log; what an engine samples under a version can then be explained after a crash."""
        self._controls = list(controls)
        self._record = record
        self._mode = mode
        self._gateway = httpx.AsyncClient(
            base_url=gateway_url,
            headers={"Authorization": f"Bearer {admin_key}"},
            timeout=CONTROL_TIMEOUT_S,
            trust_env=False,
        )

    async def register(self) -> None:
        """Puts every engine behind the gateway, at version 0."""
        for control in self._controls:
            await self._tell("POST", "/engines", {"url": control.url, "id": control.engine_id, "version": 0})

    @asynccontextmanager
    async def swap(self, version: int) -> AsyncIterator[WeightSwap]:
        """Raises SwapError when no engine took the version."""
        swap = WeightSwap(self._controls, version, self._mode)
        try:
            async with swap:
                yield swap
        finally:
            for engine_id, error in swap.failures.items():
                logger.error("%s gets no more traffic: %s", engine_id, error)
                await self._tell("PUT", f"/engines/{engine_id}", {"routable": False})
        for record in swap.records:
            self._record(record)
            await self._tell("PUT", f"/engines/{record.engine_id}", {"version": version, "routable": True})

    async def close(self) -> None:
        await self._gateway.aclose()
        for control in self._controls:
            await control.close()

    async def _tell(self, method: str, path: str, body: dict[str, Any]) -> None:
        try:
            response = await self._gateway.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise RunError(f"the gateway did not take {method} {path}: {error!r}; see logs/gateway.log") from error
        if response.is_error:
            raise RunError(f"the gateway answered {response.status_code} to {method} {path}: {response.text[:300]}")
