"""What vLLM's trainer engines ask of servers, passed on to all engines of a run at once. Free of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from agentrl.engine import ipc_handles
from agentrl.errors import TrainerError


class EngineUpdates:
    """vLLM's `VLLMWeightSyncClient`, to several servers at once. Raises TrainerError when one refuses or is gone."""

    def __init__(self, urls: Sequence[str], *, timeout_s: float, key: str | None = None) -> None:
        """key: of servers that answer nobody without it."""
        self._urls = list(urls)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(timeout=timeout_s, trust_env=False, headers=headers)
        self.world_sizes: list[int] = []  # GPUs of each engine

    def ask_world_sizes(self) -> int:
        """GPUs of all engines together."""
        self.world_sizes = [int(self._call("GET", url, "/get_world_size")["world_size"]) for url in self._urls]
        return sum(self.world_sizes)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """vLLM gives every worker of one server its rank; a further server's begin after those before it."""
        offsets = [
            init_info.get("rank_offset", 0) + sum(self.world_sizes[:number]) for number in range(len(self._urls))
        ]
        bodies = [
            {"init_info": init_info | ({"rank_offset": offset} if "rank_offset" in init_info else {})}
            for offset in offsets
        ]
        self._post_all("/init_weight_transfer_engine", bodies)

    def start_weight_update(self) -> None:
        """The driver has done it."""

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        assert isinstance(update_info, dict)
        info = dict(update_info)
        if (handles := info.pop("ipc_handles", None)) is not None:
            info.pop("ipc_handles_pickled", None)
            info["handles"] = ipc_handles.to_json(handles)
        self._post_all("/update_weights", [{"update_info": info}] * len(self._urls))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The driver will."""

    def close(self) -> None:
        self._http.close()

    def _post_all(self, path: str, bodies: Sequence[dict[str, Any]]) -> None:
        """At the same time: in NCCL calls the engines wait for each other."""
        with ThreadPoolExecutor(len(self._urls)) as pool:
            list(pool.map(lambda url, body: self._call("POST", url, path, body), self._urls, bodies))

    def _call(self, method: str, url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = self._http.request(method, url + path, json=body)
        except httpx.HTTPError as error:
            raise TrainerError(f"engine {url}{path} cannot be reached: {error!r}") from error
        if response.is_error:
            raise TrainerError(f"engine {url}{path} answered {response.status_code}: {response.text[:500]}")
        answer: dict[str, Any] = response.json()
        return answer
