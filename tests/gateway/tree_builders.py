"""A gateway for the tests of random trees: engines in memory, and requests straight into its app, or over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
from template_families import TemplateFamily
from tree_agent import Agent
from tree_plans import Plan
from tree_twin import Run, TwinEngine, World

from agentrl.gateway.app import build_app
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.server import GatewayServer
from agentrl.types import Trajectory

ADMIN = "the-admin-key"
ENGINES = ("http://one", "http://two")
QUICK = {"health_every_s": 0.005, "breaker_backoff_s": 0.001, "breaker_max_backoff_s": 0.002, "engine_wait_s": 5.0}
LIMIT_S = 20.0
REQUEST_ID = re.compile(r"((chatcmpl-[0-9a-f]{32})(-\d+)?)(-go\d+-\d+)?")


@dataclass
class Finished:
    """What an agent did, what the engines saw of it, and what the gateway made of it."""

    family: TemplateFamily
    plan: Plan
    agent: Agent
    world: World
    trajectory: Trajectory


class App:
    """An ASGI app, called without a server. It hears of a client that is gone as a server would tell it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def call(
        self, method: str, path: str, body: bytes, key: str, headers: Mapping[str, str], hang_up: int | None = None
    ) -> tuple[int, bytes] | None:
        """Status and body; None when the client hung up, `hang_up` rounds of the event loop after it had sent."""
        gone, sent = asyncio.Event(), [{"type": "http.request", "body": body, "more_body": False}]
        status, pieces, is_whole = 0, [], False

        async def receive() -> dict[str, Any]:
            if sent:
                return sent.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, is_whole
            if gone.is_set():
                return
            status = message.get("status", status)
            pieces.append(message.get("body", b""))
            is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        async def leave(rounds: int) -> None:
            for _ in range(rounds):
                await asyncio.sleep(0)
            gone.set()

        named = {"authorization": f"Bearer {key}", "content-length": str(len(body)), **headers}
        if body:
            named["content-type"] = "application/json"
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 1),
            "server": ("gateway", 80),
        }
        leaving = None if hang_up is None else asyncio.create_task(leave(hang_up))
        async with asyncio.timeout(LIMIT_S):
            await self._app(scope, receive, send)
        if leaving is not None:
            await leaving
        gone.set()
        return (status, b"".join(pieces)) if is_whole else None

    async def control(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.call(method, path, b"" if body is None else json.dumps(body).encode(), ADMIN, {})
        assert answer is not None
        assert answer[0] < 300, answer
        return msgspec.json.decode(answer[1])


@asynccontextmanager
async def gateway_in_memory(family: TemplateFamily, world: World) -> AsyncIterator[App]:
    settings = GatewayConfig(**QUICK, engine_urls=ENGINES, measure_drift=False)
    gateway = Gateway(settings, family.renderer, lambda url: TwinEngine(url, world), admin_key=ADMIN, sink=None)
    world.on_swap = lambda version: tell_all(gateway, version)
    await gateway.start()
    try:
        yield App(build_app(gateway, family.renderer))
    finally:
        await gateway.close()


def tell_all(gateway: Gateway, version: int) -> None:
    pool = gateway.pools.shared
    for engine in pool.table:
        pool.tell(engine.id, version=version, routable=None)


async def finished(family: TemplateFamily, plan: Plan) -> Finished:
    """The plan, carried out to its end against a gateway in memory."""
    world = World(family)
    async with gateway_in_memory(family, world) as app:
        opened = await app.control("POST", "/sessions", _opening(plan))
        path = f"/sessions/{opened['session_id']}"

        async def post(body: bytes, headers: Mapping[str, str], hang_up: int | None) -> tuple[int, bytes] | None:
            return await app.call("POST", f"{path}/v1/chat/completions", body, opened["api_key"], headers, hang_up)

        agent = Agent(post, world, plan)
        await agent.act()
        await app.control("POST", f"{path}/finish")
        trajectory = msgspec.convert(await app.control("GET", f"{path}/trajectory"), Trajectory)
        return Finished(family, plan, agent, world, trajectory)


async def finished_over_http(family: TemplateFamily, plan: Plan) -> Finished:
    """The same with a server and real connections, which the client closes when it hangs up."""
    world = World(family)
    server = GatewayServer(
        GatewayConfig(**QUICK, engine_urls=ENGINES),
        renderer=family.renderer,
        engine_factory=lambda url: TwinEngine(url, world),
        admin_key=ADMIN,
    )
    world.on_swap = lambda version: tell_all(server.gateway, version)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=LIMIT_S, trust_env=False) as http:
            admin = {"authorization": f"Bearer {ADMIN}"}
            opened = (await http.post("/sessions", json=_opening(plan), headers=admin)).json()
            path = f"/sessions/{opened['session_id']}"

            async def post(body: bytes, headers: Mapping[str, str], hang_up: int | None) -> tuple[int, bytes] | None:
                key = {"authorization": f"Bearer {opened['api_key']}"}
                url = f"{opened['base_url']}/chat/completions"
                sent = asyncio.create_task(http.post(url, content=body, headers={**key, **headers}))
                if hang_up is not None and not await _ends_within(sent, hang_up):
                    return None
                response = await sent
                return response.status_code, response.content

            agent = Agent(post, world, plan)
            await agent.act()
            (await http.post(f"{path}/finish", headers=admin)).raise_for_status()
            found = await http.get(f"{path}/trajectory", headers=admin)
            return Finished(family, plan, agent, world, msgspec.json.decode(found.content, type=Trajectory))
    finally:
        await server.stop()


async def _ends_within(task: asyncio.Task[Any], rounds: int) -> bool:
    """Whether it ends within so many rounds of the event loop; else it is cancelled."""
    for _ in range(rounds):
        await asyncio.sleep(0)
    if task.done():
        return True
    task.cancel()
    await asyncio.wait({task})
    return False


def _opening(plan: Plan) -> dict[str, Any]:
    limits = {} if plan.max_tokens is None else {"max_tokens": plan.max_tokens}
    return {"history": plan.history, "limits": limits}


def call_of(run: Run) -> tuple[str, str]:
    """(call, response) for which an engine sampled."""
    match = REQUEST_ID.fullmatch(run.request_id)
    assert match is not None, run.request_id
    return match[1], match[2]


def prompts_of(done: Finished) -> dict[str, list[int]]:
    """Of every call, as the first engine that it went to was given it."""
    found: dict[str, list[int]] = {}
    for run in done.world.runs:
        found.setdefault(call_of(run)[0], run.prompt_ids)
    return found
