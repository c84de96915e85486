"""A judge with every fault: dies for a while, fails for one item for ever, says NaN, cuts, shuffles and stalls."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Plan:
    """Which distinct item, counted from 1 as they come, has which fault; when the judge dies, and for how long."""

    not_a_number: int = 3
    poisoned: int = 10
    slow: int = 50
    slow_s: float = 30.0
    dies_after: int = 110  # distinct items
    dead_s: float = 60.0
    cut_each: int = 7  # requests


def opinion(item_id: str) -> float:
    """What the judge thinks of an item: always the same, so that a checker knows."""
    return (zlib.crc32(item_id.encode()) % 1000) / 1000


class Faulty:
    """A server in this process. `said` is every reward that it sent, by item; `faults` what it did."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.said: dict[str, set[float]] = defaultdict(set)
        self.faults: Counter[str] = Counter()
        self.chosen: dict[str, str] = {}  # item -> fault
        self.url = ""
        self._seen: set[str] = set()
        self._requests = 0
        self._dying = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/score", self._score)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def die_once(self) -> None:
        """When enough items have been seen: nothing listens for `dead_s`."""
        await self._dying.wait()
        port = int(self.url.rpartition(":")[2])
        await self.stop()
        self.faults["died"] += 1
        await asyncio.sleep(self.plan.dead_s)
        await self.start(port)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _score(self, request: web.Request) -> web.Response:
        ids = [item["id"] for item in (await request.json())["items"]]
        self._requests += 1
        self._look_at(ids)
        faults = {self.chosen[one] for one in ids if one in self.chosen}
        if "poisoned" in faults:
            self.faults["500"] += 1
            return web.Response(status=500, text="this item ends me")
        if "slow" in faults:
            self.faults["stalled"] += 1
            await asyncio.sleep(self.plan.slow_s)
        results = [{"id": one, "reward": self._reward(one)} for one in reversed(ids)]
        self.faults["another order"] += len(ids) > 1
        if self._requests % self.plan.cut_each == 0:
            self.faults["too few results"] += 1
            results.pop()
        for result in results:
            if result["reward"] == result["reward"]:
                self.said[result["id"]].add(result["reward"])
        return web.Response(text=json.dumps({"results": results}), content_type="application/json")

    def _look_at(self, ids: list[str]) -> None:
        by_number = {self.plan.poisoned: "poisoned", self.plan.not_a_number: "NaN", self.plan.slow: "slow"}
        for one in ids:
            if one not in self._seen:
                self._seen.add(one)
                if len(self._seen) in by_number:
                    self.chosen[one] = by_number[len(self._seen)]
        if len(self._seen) >= self.plan.dies_after:
            self._dying.set()

    def _reward(self, item_id: str) -> Any:
        if self.chosen.get(item_id) != "NaN":
            return opinion(item_id)
        self.faults["NaN"] += 1
        return float("nan")
