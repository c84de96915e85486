"""The clients of many sessions at once, in a process of their own: every session has a connection and begins at once.

    python -m bench.gateway.load --url http://127.0.0.1:8080 --sessions 1000

What is printed is one `Outcome` as JSON. A session that fails is counted and its first error kept; the others go on.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

import msgspec
import uvloop
from msgspec import Struct

from bench.gateway.http1 import BadAnswer, Connection, Request, ask
from bench.gateway.quantile import quantile
from bench.gateway.subjects import SUBJECTS
from bench.gateway.workload import Sizes, Workload


class Outcome(Struct, kw_only=True):
    requests: int
    errors: int
    first_error: str
    seconds: float
    p50_ms: float
    p99_ms: float


class Sessions:
    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._workload = Workload(Sizes(given.prompt_tokens, given.answer_tokens, given.turns))
        self._latencies_ms: list[float] = []
        self._errors: list[str] = []

    async def run(self) -> Outcome:
        draw, started = random.Random(0), time.perf_counter()
        delays = [draw.random() * self._given.spread_s for _ in range(self._given.sessions)]
        await asyncio.gather(*(self._session(episode, delay_s) for episode, delay_s in enumerate(delays)))
        if not self._latencies_ms:
            raise BadAnswer(f"no session got an answer; the first error was {self._errors[0]}")
        return Outcome(
            requests=len(self._latencies_ms),
            errors=len(self._errors),
            first_error=next(iter(self._errors), ""),
            seconds=time.perf_counter() - started,
            p50_ms=quantile(self._latencies_ms, 0.5),
            p99_ms=quantile(self._latencies_ms, 0.99),
        )

    async def _session(self, episode: int, delay_s: float) -> None:
        connection = Connection(self._given.url)
        await asyncio.sleep(delay_s)
        try:
            await self._episode(connection, episode)
        except (BadAnswer, OSError, TimeoutError) as error:
            self._errors.append(repr(error))
        finally:
            connection.close()

    async def _episode(self, connection: Connection, episode: int) -> None:
        subject, draw = SUBJECTS["agentrl"], random.Random(episode)
        opened = await ask(connection, subject.open(episode))
        route = subject.route(episode, opened)
        for turn in range(self._workload.sizes.turns):
            body = self._workload.body(episode, turn)
            began = time.perf_counter()
            await connection.ask(Request("POST", route.path, body, route.headers))
            self._latencies_ms.append((time.perf_counter() - began) * 1000)
            if self._given.think_s:  # the environment's step
                await asyncio.sleep(draw.random() * 2 * self._given.think_s)
        await ask(connection, subject.close(route))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--spread-s", type=float, default=0.0, help="over which the sessions begin")
    parser.add_argument("--think-s", type=float, default=0.0, help="mean time between an answer and the next request")
    parser.add_argument("--prompt-tokens", type=int, default=Sizes().prompt_tokens)
    parser.add_argument("--answer-tokens", type=int, default=Sizes().answer_tokens)
    parser.add_argument("--turns", type=int, default=Sizes().turns)
    print(msgspec.json.encode(uvloop.run(Sessions(parser.parse_args()).run())).decode())


if __name__ == "__main__":
    main()
