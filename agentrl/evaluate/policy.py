"""The policy that is evaluated, as a gateway: a local model on an engine of our own, or somebody's endpoint."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from agentrl.assets import resolve_model
from agentrl.cluster.cleanup import no_process_left
from agentrl.cluster.signals import Interrupts, interruptible
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.config import EngineConfig
from agentrl.engine.replica import EngineReplica
from agentrl.errors import ConfigError
from agentrl.evaluate.config import EndpointConfig
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.gateway.thread import GatewayThread
from agentrl.rollout.client import HttpGateway
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.endpoint import EndpointGateway
from agentrl.store.base import TrajectoryStore

Say = Callable[[str], None]


def endpoint_policy(config: EndpointConfig, rollout: RolloutConfig, store: TrajectoryStore) -> EndpointGateway:
    """Raises ConfigError when the variable that is to hold the key is not set."""
    key = None
    if config.api_key_env is not None:
        key = os.environ.get(config.api_key_env)
        if not key:
            raise ConfigError(
                f"the environment variable {config.api_key_env}, which is to hold the endpoint's key, is not set; "
                "export it, or leave --api-key-env out"
            )
    return EndpointGateway(config.url, model=config.model, api_key=key, config=rollout, sink=store)


@contextlib.contextmanager
def ending_cleanly() -> Iterator[Interrupts]:
    """Inside, the first Ctrl-C cancels what runs, a second one ends all, and no process is left afterwards."""
    with no_process_left(lambda: None) as end_now, interruptible(end_now) as interrupts:
        yield interrupts


@contextlib.contextmanager
def served_model(
    name: str, config: EngineConfig, rollout: RolloutConfig, *, store: TrajectoryStore, logs: Path, say: Say
) -> Iterator[Callable[[], HttpGateway]]:
    """Starts vLLM and a gateway in front of it, and yields what makes a client, which belongs to one event loop.

    Belongs in the main thread and inside `ending_cleanly`. Raises ConfigError (no such model, a wrong vLLM) and
    EngineError (it died, or did not come up in time).
    """
    model = resolve_model(name)
    with tempfile.TemporaryDirectory(prefix="agentrl-eval-") as weights:
        replica = EngineReplica(model, config, logs_dir=logs, weights_dir=Path(weights))
        say(f"starting vLLM with {name}")
        started = time.monotonic()
        try:
            url = replica.start()
            say(f"vLLM is ready after {time.monotonic() - started:.0f} s")
            server = GatewayServer(
                GatewayConfig(engine_urls=(url,), engine_concurrency=config.max_num_seqs),
                renderer=Renderer.load(model),
                engine_factory=partial(HttpEngineClient, timeouts=config.timeouts),
                sink=store,
            )
            thread = GatewayThread(server)
            try:
                gateway_url = thread.start()
                yield lambda: HttpGateway(gateway_url, server.admin_key, rollout)
                thread.check()
            finally:
                thread.stop()
        finally:
            replica.stop()
