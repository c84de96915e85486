"""One HTTP request to one server of a reward service, in the protocol that it speaks."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence

import httpx
import orjson

from agentrl.errors import ConfigError, RewardError
from agentrl.retry import retry_after
from agentrl.reward.config import ServiceConfig
from agentrl.reward.delivery import Outage, Refused, Trouble
from agentrl.reward.protocol import (
    BrokenAnswer,
    Item,
    Score,
    nemo_gym_body,
    openrlhf_body,
    outside_of,
    read_answer,
    read_nemo_gym,
    read_openrlhf,
    request_body,
)

UNABLE = (429, 502, 503, 504)
"""Answers of a service, or of a proxy before it, that cannot work now, whatever it is asked."""

MAX_ANSWER = 16 * 2**20
"""Bytes, unpacked. A score with its components has a few hundred."""

ABOUT_THE_BODY = (400, 413, 422)
"""Refusals that another body may not meet. Others are of the key, the path or the method, for every request."""


class ServiceWire:
    """Belongs to one event loop. Raises ConfigError for an `auth_env` that is not set and a `ca_file` that is none."""

    def __init__(self, service: ServiceConfig) -> None:
        self._service = service
        limits = httpx.Limits(max_connections=service.concurrency, max_keepalive_connections=service.concurrency)
        self._http = httpx.AsyncClient(
            headers=_auth(service), limits=limits, timeout=service.timeout_s, trust_env=False, verify=_tls(service)
        )

    async def score(self, url: str, items: Sequence[Item]) -> dict[str, Score]:
        """By id. The time limit begins here, when the request is sent.

        Raises Outage and Trouble, which may pass, Refused, which other items may not meet, and RewardError for what
        no other request would better.
        """
        service = self._service
        path, body = self._asked(url, items)
        try:
            # httpx bounds each read; this bounds the whole, for a server that trickles.
            async with asyncio.timeout(service.timeout_s):
                response, data = await self._post(path, body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Outage(f"reward service {service.name} cannot be reached at {path}: {error}") from error
        except (httpx.TimeoutException, TimeoutError) as error:
            raise Trouble(f"reward service {service.name} did not answer within {service.timeout_s:g} s") from error
        except httpx.HTTPError as error:  # it was there: one of the items may have ended it
            raise Trouble(f"reward service {service.name} at {path}: {type(error).__name__}: {error}") from error
        status = response.status_code
        if status in UNABLE:
            wait = retry_after(response.headers.get("Retry-After"))
            raise Outage(f"reward service {service.name} answered {status}", retry_after_s=wait)
        if status >= 500:
            raise Trouble(f"reward service {service.name} answered {status}: {_shown(data)}")
        if status >= 300:
            refusal = Refused if status in ABOUT_THE_BODY else RewardError
            raise refusal(f"reward service {service.name} refused the request with {status}: {_shown(data)}")
        try:
            return self._read(items, data)
        except BrokenAnswer as error:
            raise Trouble(str(error)) from error

    async def healthy(self, url: str) -> str | None:
        """None when the server answers its health check, else why not."""
        path = url.rstrip("/") + "/health"
        try:
            async with asyncio.timeout(self._service.timeout_s):
                response = await self._http.get(path)
        except (httpx.HTTPError, TimeoutError) as error:
            return f"does not answer at {path} ({str(error) or f'no answer within {self._service.timeout_s:g} s'})"
        return None if response.status_code < 400 else f"is not healthy: {path} gave {response.status_code}"

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, path: str, body: bytes) -> tuple[httpx.Response, bytes]:
        """Raises Trouble for an answer of more than MAX_ANSWER."""
        data = bytearray()
        headers = {"Content-Type": "application/json"}
        async with self._http.stream("POST", path, content=body, headers=headers) as response:
            async for part in response.aiter_bytes():
                data += part
                if len(data) > MAX_ANSWER:
                    raise Trouble(
                        f"reward service {self._service.name} sent more than {MAX_ANSWER} bytes; send scores only"
                    )
        return response, bytes(data)

    def _asked(self, url: str, items: Sequence[Item]) -> tuple[str, bytes]:
        base = url.rstrip("/")
        match self._service.protocol:
            case "openrlhf":
                return url, orjson.dumps(openrlhf_body(items))
            case "nemo_gym":
                return f"{base}/verify", orjson.dumps(nemo_gym_body(items[0]))
            case "agentrl":
                return f"{base}/score", orjson.dumps(request_body(items))

    def _read(self, items: Sequence[Item], data: bytes) -> dict[str, Score]:
        readers = {"openrlhf": read_openrlhf, "nemo_gym": read_nemo_gym, "agentrl": read_answer}
        scores = readers[self._service.protocol](self._service.name, items, data)
        return {item_id: self._within_bounds(score) for item_id, score in scores.items()}

    def _within_bounds(self, score: Score) -> Score:
        why = outside_of(self._service.bounds, score.reward)
        return score if why is None else Score(id=score.id, error=f"reward service {self._service.name}: {why}")


def _shown(data: bytes) -> str:
    return data[:200].decode(errors="replace")


def _auth(service: ServiceConfig) -> dict[str, str]:
    if service.auth_env is None:
        return {}
    token = os.environ.get(service.auth_env)
    if not token:
        raise ConfigError(
            f"reward service {service.name} needs the environment variable {service.auth_env}, which is not set"
        )
    return {"Authorization": f"Bearer {token}"}


def _tls(service: ServiceConfig) -> ssl.SSLContext | bool:
    if service.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=service.ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"the ca_file {service.ca_file} of reward service {service.name} is no use: {error}"
        ) from error
