"""The clients of one round, in a process of their own: a closed loop of `clients` connections, for some seconds.

    python -m bench.gateway.client --subject agentrl --url http://127.0.0.1:8080 --clients 32

Each connection runs one episode after the other: opens a session, makes its calls in turn, ends it. The first
`warm-up` seconds are not counted. What is printed is one `Round` as JSON. With `--audit` it runs one more episode
after that and reads its recording, to see that the gateway did record.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Iterator

import msgspec
import uvloop
from msgspec import Struct

from bench.gateway.http1 import BadAnswer, Connection, Request, ask
from bench.gateway.quantile import quantile
from bench.gateway.subjects import SUBJECTS
from bench.gateway.subjects.base import Route, Subject
from bench.gateway.workload import Sizes, Workload

RECORDING_S = 20.0
"""How long a recording may take to be complete; some gateways write it after they have answered."""


class Round(Struct, frozen=True, kw_only=True):
    """One subject, one number of clients, one round."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    prompt_tokens: float | None = None  # mean over the calls of the audited episode, as recorded


class Connections:
    """Of one client: one to the gateway, and one to each other place that it says a session is at."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: dict[str, Connection] = {}

    def to(self, origin: str) -> Connection:
        url = origin or self._url
        if url not in self._open:
            self._open[url] = Connection(url)
        return self._open[url]

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()


class Clients:
    def __init__(self, subject: Subject, url: str, workload: Workload, *, first_episode: int) -> None:
        self._subject = subject
        self._url = url
        self._workload = workload
        self._episodes = itertools.count(first_episode)
        self._audited = first_episode - 1  # the same however many come before it
        self._expected = f'"{workload.answer}"'.encode()
        self._latencies_ms: list[float] = []

    async def round(self, clients: int, *, warm_up_s: float, seconds: float) -> Round:
        begin = time.perf_counter() + warm_up_s
        await asyncio.gather(*(self._client(begin, begin + seconds) for _ in range(clients)))
        found = self._latencies_ms
        if not found:
            raise BadAnswer(f"{self._subject.title} answered nothing in {seconds:g} s; give more --seconds")
        return Round(requests=len(found), seconds=seconds, p50_ms=quantile(found, 0.5), p99_ms=quantile(found, 0.99))

    async def audit(self) -> float:
        """Mean prompt ids of one recorded episode. Raises ValueError when it was not recorded as it should be."""
        subject, sizes = self._subject, self._workload.sizes
        connections = Connections(self._url)
        connection = connections.to("")
        try:
            route, bodies = await self._open(connection, self._audited)
            for body in bodies:
                await self._call(connections, route, body)
            if subject.closed_before_read:
                await ask(connection, subject.close(route))
            expected = (sizes.turns, sizes.turns * sizes.answer_tokens)
            deadline = time.monotonic() + RECORDING_S
            while True:
                answer = await ask(connection, subject.read(route))
                calls, prompts, sampled = subject.recorded(answer)
                if (calls, sampled) == expected:
                    break
                if time.monotonic() > deadline:
                    raise ValueError(f"{subject.title} recorded {calls, sampled} calls, tokens; expected {expected}")
                await asyncio.sleep(0.05)
            if not subject.closed_before_read:
                await ask(connection, subject.close(route))
            return prompts / calls
        finally:
            connections.close()

    async def _client(self, begin: float, end: float) -> None:
        connections = Connections(self._url)
        connection = connections.to("")
        try:
            while time.perf_counter() < end:
                route, bodies = await self._open(connection, next(self._episodes))
                for body in bodies:
                    started = time.perf_counter()
                    await self._call(connections, route, body)
                    ended = time.perf_counter()
                    if begin <= ended < end:
                        self._latencies_ms.append((ended - started) * 1000)
                    elif ended >= end:
                        break
                await ask(connections.to(route.origin), self._subject.close(route))
        finally:
            connections.close()

    async def _open(self, connection: Connection, episode: int) -> tuple[Route, Iterator[bytes]]:
        opened = await ask(connection, self._subject.open(episode))
        turns = range(self._workload.sizes.turns)
        bodies = (self._workload.body(episode, turn, more=self._subject.fields) for turn in turns)
        return self._subject.route(episode, opened), bodies

    async def _call(self, connections: Connections, route: Route, body: bytes) -> None:
        answer = await connections.to(route.origin).ask(Request("POST", route.path, body, route.headers))
        if self._expected not in answer:
            raise BadAnswer(f"{self._subject.title} gave another answer than the engine: {answer[:300]!r}")


async def run(given: argparse.Namespace) -> Round:
    subject = SUBJECTS[given.subject]
    workload = Workload(Sizes(given.prompt_tokens, given.answer_tokens, given.turns))
    clients = Clients(subject, given.url, workload, first_episode=given.first_episode)
    result = await clients.round(given.clients, warm_up_s=given.warm_up, seconds=given.seconds)
    return msgspec.structs.replace(result, prompt_tokens=await clients.audit()) if given.audit else result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subject", choices=list(SUBJECTS), required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--first-episode", type=int, default=0)
    parser.add_argument("--prompt-tokens", type=int, default=Sizes().prompt_tokens)
    parser.add_argument("--answer-tokens", type=int, default=Sizes().answer_tokens)
    parser.add_argument("--turns", type=int, default=Sizes().turns)
    parser.add_argument("--audit", action="store_true")
    print(msgspec.json.encode(uvloop.run(run(parser.parse_args()))).decode())


if __name__ == "__main__":
    main()
