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

from bench.gateway.http1 import BadAnswer, Connection, Request
from bench.gateway.subjects import SUBJECTS
from bench.gateway.workload import Sizes, Workload


class Outcome(Struct, kw_only=True):
    errors: int = 0
    first_error: str = ""
    seconds: float = 0.0
    latencies_ms: list[float] = []


async def run(given: argparse.Namespace) -> Outcome:
    workload = Workload(Sizes(given.prompt_tokens, given.answer_tokens, given.turns))
    outcome = Outcome()
    draw = random.Random(0)
    starts = [draw.random() * given.spread_s for _ in range(given.sessions)]
    started = time.perf_counter()
    await asyncio.gather(*(_session(given, workload, outcome, n, delay) for n, delay in enumerate(starts)))
    outcome.seconds = time.perf_counter() - started
    return outcome


async def _session(
    given: argparse.Namespace, workload: Workload, outcome: Outcome, episode: int, delay_s: float
) -> None:
    subject, connection, draw = SUBJECTS["agentrl"], Connection(given.url), random.Random(episode)
    await asyncio.sleep(delay_s)
    try:
        opening, ending = subject.open(episode), None
        assert opening is not None
        route = subject.route(episode, await connection.ask(opening))
        for turn in range(workload.sizes.turns):
            body = workload.body(episode, turn)
            began = time.perf_counter()
            await connection.ask(Request("POST", route.path, body, route.headers))
            outcome.latencies_ms.append((time.perf_counter() - began) * 1000)
            if given.think_s:  # the environment's step
                await asyncio.sleep(draw.random() * 2 * given.think_s)
        if (ending := subject.close(route)) is not None:
            await connection.ask(ending)
    except (BadAnswer, OSError, TimeoutError) as error:
        outcome.errors += 1
        outcome.first_error = outcome.first_error or repr(error)
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--spread-s", type=float, default=0.0, help="over which the sessions begin")
    parser.add_argument("--think-s", type=float, default=0.0, help="mean time between an answer and the next request")
    parser.add_argument("--prompt-tokens", type=int, default=Sizes().prompt_tokens)
    parser.add_argument("--answer-tokens", type=int, default=Sizes().answer_tokens)
    parser.add_argument("--turns", type=int, default=Sizes().turns)
    print(msgspec.json.encode(uvloop.run(run(parser.parse_args()))).decode())


if __name__ == "__main__":
    main()
