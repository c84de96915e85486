"""The reward services that a run starts for itself: each a process, its port chosen before, restarted when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from agentrl.cluster.supervisor import Supervisor
from agentrl.engine.launch import listening_socket
from agentrl.engine.replica import NO_KEEP_ALIVE
from agentrl.observe.faults import FaultRecord
from agentrl.reward.config import RewardConfig, ServiceConfig
from agentrl.reward.service import GATEWAY_KEY, GATEWAY_URL
from agentrl.supervision import SupervisionConfig

STOP_S = 10.0


class RewardServices:
    """`config` has the URLs of all services. `start` once the gateway is up, then `watch`, and `stop` in the end."""

    def __init__(
        self,
        config: RewardConfig,
        logs: Path,
        *,
        supervision: SupervisionConfig,
        faulted: Callable[[FaultRecord], None],
        say: Callable[[str], None],
    ) -> None:
        self._supervision = supervision
        self._faulted, self._say = faulted, say
        self._started = {
            service.name: StartedService(service, logs, probe_timeout_s=supervision.probe_timeout_s)
            for service in config.services
            if service.start
        }
        services = tuple(self._with_url(service) for service in config.services)
        self.config = config.model_copy(update={"services": services})

    def start(self, gateway_url: str, key: str) -> None:
        for one in self._started.values():
            one.spawn({GATEWAY_URL: gateway_url, GATEWAY_KEY: key})
            self._say(f"reward service {one.service.name} ({one.service.start}) is starting at {one.url}")

    async def watch(self) -> None:
        """Returns never. Starts a service that died or hangs again, some times, then raises RunError."""
        parts = list(self._started.values())
        await Supervisor(self._supervision, parts, faulted=self._faulted, say=self._say).run()

    def stop(self) -> None:
        """Safe to call twice, and when nothing was started."""
        for one in self._started.values():
            one.terminate()
        for one in self._started.values():
            one.close()

    def _with_url(self, service: ServiceConfig) -> ServiceConfig:
        if not service.start:
            return service
        return service.model_copy(update={"url": self._started[service.name].url})


class StartedService:
    """One service as the supervisor sees it. Requests wait in its socket while it comes up, or again."""

    def __init__(self, service: ServiceConfig, logs: Path, *, probe_timeout_s: float) -> None:
        self.service = service
        self.name = f"reward-{service.name}"
        self.log = logs / f"{self.name}.log"
        self._sock = listening_socket(None)
        self._http = httpx.AsyncClient(timeout=probe_timeout_s, limits=NO_KEEP_ALIVE, trust_env=False)
        self._environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False  # since it was started: until then it may take its time

    @property
    def url(self) -> str:
        host, port = self._sock.getsockname()[:2]
        return f"http://{host}:{port}"

    def spawn(self, environment: Mapping[str, str]) -> None:
        service, self._environment, self._answered = self.service, dict(environment), False
        options = [f"--option={key}={json.dumps(value)}" for key, value in service.options.items()]
        command = [sys.executable, "-m", "agentrl.cli.main", "reward", "serve", str(service.start)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, f"--fd={self._sock.fileno()}", *options],
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(self._sock.fileno(),),
            )

    async def probe(self) -> tuple[bool, bool]:
        if self._process is None or self._process.poll() is not None:
            return False, False
        answered = await self._healthy()
        self._answered |= answered
        return True, answered or not self._answered

    async def lost(self) -> None:
        """Those who ask it wait and ask again."""

    async def restart(self) -> None:
        """It comes up while requests wait for it."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self.spawn(self._environment)

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def close(self) -> None:
        """After `terminate`. Its socket is gone too."""
        if self._process is not None:
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._sock.close()

    async def _healthy(self) -> bool:
        try:
            return (await self._http.get(f"{self.url}/health")).is_success
        except httpx.HTTPError:
            return False
