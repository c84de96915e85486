"""The gateway in a thread of its own, for processes whose main loop is another's."""

from __future__ import annotations

import socket

import httpx
import pytest
from gateway_builders import renderer

from agentrl.engine.client import HttpEngineClient
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.server import GatewayServer
from agentrl.gateway.thread import GatewayThread


def thread(**config: int) -> GatewayThread:
    server = GatewayServer(GatewayConfig(**config), renderer=renderer(), engine_factory=HttpEngineClient)
    return GatewayThread(server)


def test_it_serves_until_it_is_stopped() -> None:
    serving = thread()
    url = serving.start()
    assert httpx.get(f"{url}/health", trust_env=False).json() == {"status": "ok"}
    serving.check()
    serving.stop()
    serving.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", trust_env=False)


def test_a_port_in_use_is_said_to_who_starts_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        serving = thread(port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="is in use"):
            serving.start()
        with pytest.raises(ConfigError, match="is in use"):
            serving.check()
        serving.stop()
