"""A run's parts as the supervisor has them, over actors of this process: what dies is started again, and is of use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_builders import END, letters, renderer
from twins import TwinTrainer

from agentrl.cluster.fleet import EngineFleet
from agentrl.cluster.gateway_engines import GatewayEngines
from agentrl.cluster.parts import actor as actor_module
from agentrl.cluster.parts import engines as engines_module
from agentrl.cluster.parts import gateway as gateway_module
from agentrl.cluster.parts.engines import Engines
from agentrl.cluster.parts.gateway import GatewayProcess
from agentrl.cluster.parts.setting import Setting
from agentrl.cluster.site import Site
from agentrl.cluster.supervisor import Supervisor
from agentrl.config import RunConfig
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import ScriptedEngine
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.server import GatewayServer
from agentrl.observe.faults import FaultRecord
from agentrl.store.memory import MemoryStore
from agentrl.train.publish import GroupPublisher

QUICK = {"backoff_s": 0.01, "backoff_max_s": 0.01, "probe_every_s": 0.02, "probe_timeout_s": 5.0, "probe_failures": 2}
STORE = MemoryStore()


class DeadActor(Exception):
    pass


class LocalMethod:
    def __init__(self, actor: LocalActor, name: str) -> None:
        self._actor, self._name = actor, name

    async def remote(self, *args: Any) -> Any:
        if self._actor.dead:
            raise DeadActor(self._name)
        return await getattr(self._actor.body, self._name)(*args)


class LocalActor:
    """What Ray makes of a class, in this process."""

    def __init__(self, body: Any) -> None:
        self.body, self.dead = body, False

    def __getattr__(self, name: str) -> LocalMethod:
        return LocalMethod(self, name)


class LocalEngine:
    """An `EngineActor` whose server is scripted. `hangs` has its health checks go unanswered."""

    made: list[LocalEngine] = []  # noqa: RUF012

    def __init__(self, model: str, config: Any, *, index: int, **_: Any) -> None:
        self.server = ScriptedEngine(lambda *_: [*letters("ok"), END])
        self.starts, self.runs, self.hangs = 0, False, False
        LocalEngine.made.append(self)

    async def place(self) -> tuple[str, int]:
        return "another node", 0

    async def start(self) -> str:
        self.starts, self.runs, self.hangs = self.starts + 1, True, False
        await self.server.__aenter__()
        return self.server.url

    async def restart(self) -> str:
        self.server.boot()
        self.server.refuse_swap.clear()
        return await self.start()

    async def probe(self) -> tuple[bool, bool]:
        return self.runs, self.runs and not self.hangs

    async def die(self) -> None:
        self.runs = False
        await self.server.crash()


class LocalGateway:
    """A `GatewayActor` whose store is this process's."""

    made: list[LocalGateway] = []  # noqa: RUF012

    def __init__(self, config: GatewayConfig, *, admin_key: str, **_: Any) -> None:
        self.server = GatewayServer(
            config, renderer=renderer(), engine_factory=HttpEngineClient, admin_key=admin_key, sink=STORE
        )
        LocalGateway.made.append(self)

    async def place(self) -> tuple[str, int]:
        return "another node", 0

    async def start(self) -> str:
        return await self.server.start()

    async def probe(self) -> tuple[bool, bool]:
        return True, True

    async def end_group(self, group_id: str, stop_reason: str) -> list[str]:
        return await self.server.gateway.finish_group(group_id, stop_reason)


@pytest.fixture(autouse=True)
def local_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_of(cls: type) -> Callable[..., Any]:
        class Local:
            @staticmethod
            def remote(*args: Any, **kwargs: Any) -> LocalActor:
                return LocalActor(cls(*args, **kwargs))

        return lambda *_, **__: Local

    monkeypatch.setattr(engines_module, "actor_class", made_of(LocalEngine))
    monkeypatch.setattr(gateway_module, "actor_class", made_of(LocalGateway))
    monkeypatch.setattr(actor_module, "_this_node", lambda: "this node")
    monkeypatch.setattr("ray.kill", lambda actor: setattr(actor, "dead", True))
    LocalEngine.made, LocalGateway.made = [], []


class Parts:
    def __init__(self, directory: Path, engines: int) -> None:
        self.faults: list[FaultRecord] = []
        config = RunConfig.model_validate(
            {
                "name": "parts",
                "environment": {"id": "agentrl/Calculator-v0"},
                "engine": {"replicas": engines},
                "supervision": QUICK,
            }
        )
        self.setting = Setting(
            config=config,
            model=directory,
            logs=directory,
            weights=directory,
            store=MemoryStore(),
            store_url="",
            checkpoints=None,  # type: ignore[arg-type]
            batches=None,  # type: ignore[arg-type]
            admin_key="the-admin-key",
            site=Site(config.cluster),
            say=lambda line: None,
            faulted=self.faults.append,
        )
        self.engines = Engines(self.setting, first=0, count=engines)
        self.gateway = GatewayProcess(self.setting)
        self.trainer = TwinTrainer(directory, groups=1)
        self.fleet: EngineFleet

    async def start(self) -> None:
        await asyncio.gather(self.engines.start(), self.gateway.start())
        self.routing = GatewayEngines(self.gateway.url, self.setting.admin_key, patience_s=20.0)
        self.fleet = self.engines.fleet(self.routing)
        await self.fleet.register()
        self.publisher = GroupPublisher(trainer=self.trainer, engines=self.fleet)
        for part in self.engines.parts:
            part.bring = self.publisher.bring
        self.gateway.came_back = [self.fleet.register_again]
        self.supervisor = Supervisor(
            self.setting.config.supervision,
            [*self.engines.parts, self.gateway],
            faulted=self.faults.append,
            say=lambda line: None,
        )
        self.fleet.report = self.supervisor.report

    async def fault(self) -> FaultRecord:
        """The first one, once it is over."""
        async with asyncio.timeout(30):
            while not self.faults:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.faults[0]

    async def routed(self) -> dict[str, int]:
        """What the gateway says itself."""
        async with httpx.AsyncClient(base_url=self.gateway.url, trust_env=False) as http:
            headers = {"Authorization": f"Bearer {self.setting.admin_key}"}
            engines = (await http.get("/engines", headers=headers)).json()["engines"]
        return {engine["id"]: engine["version"] for engine in engines if engine["routable"]}


@asynccontextmanager
async def running(directory: Path, *, engines: int) -> AsyncIterator[Parts]:
    parts = Parts(directory, engines)
    await parts.start()
    watching = asyncio.create_task(parts.supervisor.run())
    try:
        yield parts
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await parts.fleet.close()
        await parts.routing.close()
        await parts.gateway.close()
        for gateway in LocalGateway.made:
            await gateway.server.stop()
        for engine in LocalEngine.made:
            with suppress(AssertionError):
                await engine.server.__aexit__(None, None, None)


async def test_an_engine_that_dies_comes_back_at_the_newest_version(tmp_path: Path) -> None:
    async with running(tmp_path, engines=2) as parts:
        await parts.publisher.publish(1)
        await LocalEngine.made[1].die()
        fault = await parts.fault()
        assert (fault.part, fault.what, fault.restarts) == ("engine-1", "died", 1)
        assert await parts.routed() == {"engine-0": 1, "engine-1": 1}
        assert [LocalEngine.made[1].starts, LocalEngine.made[1].server.version] == [2, 1]
        modes = [(swap.engine_id, swap.version, swap.mode) for swap in parts.setting.store.swaps()]
        assert modes[-2:] == [("engine-1", 0, "boot"), ("engine-1", 1, "recompute")]


async def test_an_engine_whose_actor_is_gone_gets_another_one(tmp_path: Path) -> None:
    async with running(tmp_path, engines=1) as parts:
        await parts.publisher.publish(1)
        await LocalEngine.made[0].die()
        parts.engines.parts[0].actor.handle.dead = True
        await parts.fault()
        assert [engine.starts for engine in LocalEngine.made] == [1, 1]
        assert await parts.routed() == {"engine-0": 1}


async def test_an_engine_that_answers_nothing_is_started_again(tmp_path: Path) -> None:
    async with running(tmp_path, engines=1) as parts:
        LocalEngine.made[0].hangs = True
        await LocalEngine.made[0].server.crash()
        fault = await parts.fault()
        assert fault.what == "did not answer 2 health checks in a row"
        assert await parts.routed() == {"engine-0": 0}


async def test_the_only_engine_fails_its_swap_and_the_version_is_published_once_it_is_back(tmp_path: Path) -> None:
    async with running(tmp_path, engines=1) as parts:
        LocalEngine.made[0].server.refuse_swap["finish_weight_update"] = 500
        real, engine = LocalEngine.restart, LocalEngine.made[0]

        async def restart(self: LocalEngine) -> str:
            await self.server.crash()
            return await real(self)

        LocalEngine.restart = restart  # type: ignore[method-assign]
        try:
            await parts.publisher.publish(1)
        finally:
            LocalEngine.restart = real  # type: ignore[method-assign]
        fault = await parts.fault()
        assert fault.what.startswith("failed a swap: engine engine-0 did not get version 1")
        assert await parts.routed() == {"engine-0": 1}
        assert (engine.starts, engine.server.version) == (2, 1)


async def test_a_gateway_that_dies_comes_back_at_its_address_with_its_sessions_and_the_engines(tmp_path: Path) -> None:
    async with running(tmp_path, engines=2) as parts:
        await parts.publisher.publish(3)
        headers = {"Authorization": f"Bearer {parts.setting.admin_key}"}
        async with httpx.AsyncClient(base_url=parts.gateway.url, headers=headers, trust_env=False) as http:
            session = (await http.post("/sessions", json={"metadata": {"group_id": "g7"}})).json()
        before = await ask(session, "before it died")
        url = parts.gateway.url
        first = LocalGateway.made[0].server
        first.gateway._archive = None  # so that stopping it saves nothing: it was killed
        first.gateway.books._archive = None
        killed = parts.gateway.actor.handle
        await first.stop()
        killed.dead = True
        assert (await parts.fault()).part == "gateway"
        assert parts.gateway.url == url
        assert len(LocalGateway.made) > 1
        assert await parts.routed() == {"engine-0": 3, "engine-1": 3}
        assert await ask(session, "before it died") == before, "a retry is answered from the record"
        assert (await ask(session, "after"))["id"] != before["id"]
        assert await parts.gateway.end_group("g7") == [session["session_id"]]
        assert await parts.gateway.end_group("g7") == []
        trajectory = STORE.get(session["session_id"])
        assert (trajectory.stop_reason, len(trajectory.calls)) == ("cancelled", 2)


async def ask(session: dict[str, Any], key: str) -> dict[str, Any]:
    """The answer to the one request that has this idempotency key."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "q"}]}
    headers = {"Authorization": f"Bearer {session['api_key']}", "Idempotency-Key": key}
    async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=30) as http:
        answer = await http.post(f"{session['base_url']}/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())
