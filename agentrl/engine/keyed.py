"""Clients of engines that want a key (vLLM's `--api-key`)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.config import EngineTimeouts
from agentrl.errors import ConfigError

KEY = re.compile(r"[!-~]+")
"""What a header can carry."""


def engine_clients(
    urls: Iterable[str],
    key_env: str | None,
    *,
    timeouts: EngineTimeouts | None = None,
    model: str | None = None,
    run_key: str | None = None,
) -> Callable[[str], HttpEngineClient]:
    """Makes the clients of a gateway's engines.

    The key in the environment variable `key_env` goes to the servers of `urls` alone: whoever may attach further
    engines does not learn it. Raises ConfigError: the variable is not set, no header can carry what it holds, or a URL
    has a user or a password, which would go where the key goes. `model` is `HttpEngineClient`'s. `run_key` opens the
    engines that a run attaches: all others, where nobody but the run has the admin key.
    """
    urls = list(urls)
    key = None if key_env is None else _key_of(key_env)
    if key is not None and any("@" in urlsplit(url).netloc for url in urls):
        raise ConfigError("an engine's URL has a user or a password, and engine_key_env names a key; give one of them")
    known = {_origin(url) for url in urls}

    def client(url: str) -> HttpEngineClient:
        own_key = key if _origin(url) in known else run_key
        return HttpEngineClient(url, timeouts=timeouts, api_key=own_key, model=model)

    return client


def _key_of(key_env: str) -> str:
    key = os.environ.get(key_env, "")
    if not key:
        raise ConfigError(f"engine_key_env names {key_env}, which is not set; export it, or leave the setting out")
    if not KEY.fullmatch(key):
        raise ConfigError(f"the engine key in {key_env} holds spaces or characters beyond ASCII; no header carries it")
    return key


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
