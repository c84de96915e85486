"""A reward service that takes a fixed time for each item, one at a time, and says how long it was busy."""

from __future__ import annotations

import asyncio
import sys
import time

from aiohttp import web


class SteadyService:
    def __init__(self, seconds_per_item: float) -> None:
        self._seconds = seconds_per_item
        self._turn = asyncio.Lock()
        self._busy = 0.0
        self._items = 0

    async def score(self, request: web.Request) -> web.Response:
        items = (await request.json())["items"]
        async with self._turn:
            started = time.perf_counter()
            await asyncio.sleep(self._seconds * len(items))
            self._busy += time.perf_counter() - started
        self._items += len(items)
        return web.json_response({"results": [{"id": item["id"], "reward": 1.0} for item in items]})

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"busy_s": self._busy, "items": self._items})


async def serve(seconds_per_item: float) -> None:
    service = SteadyService(seconds_per_item)
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/score", service.score)
    app.router.add_get("/health", service.health)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
