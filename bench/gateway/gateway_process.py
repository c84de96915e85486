"""agentrl's gateway with a clock in its event loop, to see how late the loop is. Ended by SIGTERM; then it reports.

    python -m bench.gateway.gateway_process --engine-url URL --port 8080 --store sqlite:///x.db --lags lags.json

A task sleeps `EVERY_S` again and again. What wakes late by L held up everything else by up to L, so it counts as one
lag of L, one of L - EVERY_S, and so on: the lags that equally spaced arrivals would have met.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from pathlib import Path

import orjson
import uvloop

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.client import HttpEngineClient
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.process import favour_the_event_loop
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.store.sql import SqlStore

EVERY_S = 0.005


async def sample_lags(lags_ms: list[float]) -> None:
    while True:
        due = time.perf_counter() + EVERY_S
        await asyncio.sleep(EVERY_S)
        lag_s = max(0.0, time.perf_counter() - due)
        while lag_s >= 0:
            lags_ms.append(lag_s * 1000)
            lag_s -= EVERY_S


async def serve(given: argparse.Namespace) -> list[float]:
    store = SqlStore(given.store)
    server = GatewayServer(
        GatewayConfig(port=given.port, engine_urls=tuple(given.engine_url)),
        renderer=Renderer.load(resolve_model(EMBEDDED)),
        engine_factory=HttpEngineClient,
        admin_key=os.environ["AGENTRL_ADMIN_KEY"],
        sink=store,
    )
    stopping, lags_ms = asyncio.Event(), list[float]()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, lags_ms.clear)  # the load begins: forget the start-up
    await server.start()
    favour_the_event_loop()  # as `agentrl serve` does
    sampler = asyncio.create_task(sample_lags(lags_ms), name="lag sampler")
    try:
        await stopping.wait()
    finally:
        sampler.cancel()
        found = list(lags_ms)
        await server.stop()
        store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine-url", action="append", default=[], help="none where the driver attaches it")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--lags", type=Path, required=True)
    given = parser.parse_args()
    given.lags.write_bytes(orjson.dumps(uvloop.run(serve(given))))


if __name__ == "__main__":
    main()
