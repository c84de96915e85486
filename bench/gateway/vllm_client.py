"""Clients that keep a real vLLM engine busy, straight or through the gateway, in a process of their own.

    python -m bench.gateway.vllm_client --way direct --url http://127.0.0.1:8000 --slots 64

Each slot sends one request after the other, all of them new conversations at temperature 1. Straight means the request
that the gateway would send (`/inference/v1/generate`, streamed, the same ids and sampling). The prompt is a row of
zeros, which the embedded policy nearly always goes on with up to `max-tokens`; what counts are the tokens really
sampled, and a request that is only partly inside the window counts by that part. What is printed is one `Window`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import time

import msgspec
import orjson
import uvloop
from msgspec import Struct

from agentrl.engine.wire import sampling_params
from agentrl.types import Sampling
from bench.gateway.http1 import BadAnswer, Connection, Request, ask
from bench.gateway.subjects import SUBJECTS
from bench.gateway.subjects.base import Route
from bench.gateway.workload import OPENING, Sizes, Workload, turn_text

CALLS_A_SESSION = 4
ZEROS = 200
USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')


class Window(Struct, frozen=True):
    tokens_per_s: float
    requests: int  # begun in the window
    tokens_a_request: float


class Slots:
    def __init__(self, way: str, url: str, first_episode: int, max_tokens: int) -> None:
        self._direct = way == "direct"
        self._url = url
        self._workload = Workload(Sizes())
        self._max_tokens = max_tokens
        self._episodes = itertools.count(first_episode)
        self._done: list[tuple[float, float, int]] = []  # began, ended, tokens

    async def window(self, slots: int, *, warm_up_s: float, seconds: float) -> Window:
        begin = time.perf_counter() + warm_up_s
        end = begin + seconds
        slot = self._slot_direct if self._direct else self._slot_gateway
        await asyncio.gather(*(slot(end) for _ in range(slots)))
        inside = sum(
            tokens * max(0.0, min(ended, end) - max(began, begin)) / (ended - began)
            for began, ended, tokens in self._done
        )
        begun = [tokens for began, _, tokens in self._done if begin <= began < end]
        return Window(inside / seconds, len(begun), sum(begun) / max(1, len(begun)))

    async def _slot_direct(self, end: float) -> None:
        connection, params = Connection(self._url), Sampling(max_tokens=self._max_tokens)
        sampling = sampling_params(params, max_tokens=self._max_tokens, send_seed=False)
        while (began := time.perf_counter()) < end:
            episode = next(self._episodes)
            body = {
                "request_id": f"direct-{episode}",
                "token_ids": self._workload.encode(turn_text("user", _question(episode)) + OPENING),
                "sampling_params": sampling,
                "stream": True,
                "cache_salt": "direct",
            }
            answer = await connection.ask(Request("POST", "/inference/v1/generate", orjson.dumps(body)))
            self._done.append((began, time.perf_counter(), _sampled(answer)))
        connection.close()

    async def _slot_gateway(self, end: float) -> None:
        """Sessions are ended and opened beside the calls, so that the slot's place in the engine never waits for it."""
        calls, control = Connection(self._url), Connection(self._url)
        ended: Route | None = None
        route = await self._change_session(control, ended)
        while time.perf_counter() < end:
            changing = asyncio.create_task(self._change_session(control, ended))
            for _ in range(CALLS_A_SESSION):
                if (began := time.perf_counter()) >= end:
                    break
                tokens = await self._call(calls, route)
                self._done.append((began, time.perf_counter(), tokens))
            ended, route = route, await changing
        for left in (ended, route):
            if left is not None:
                await ask(control, SUBJECTS["agentrl"].close(left))
        calls.close()
        control.close()

    async def _change_session(self, control: Connection, ended: Route | None) -> Route:
        subject = SUBJECTS["agentrl"]
        if ended is not None:
            await ask(control, subject.close(ended))
        return subject.route(0, await ask(control, subject.open(0)))

    async def _call(self, connection: Connection, route: Route) -> int:
        message = {"role": "user", "content": _question(next(self._episodes))}
        body = orjson.dumps({"model": "policy", "messages": [message], "max_tokens": self._max_tokens})
        answer = await connection.ask(Request("POST", route.path, body, route.headers))
        found = USAGE.search(answer)
        if found is None:
            raise BadAnswer(f"the gateway's answer has no usage: {answer[:200]!r}")
        return int(found[1])


def _question(episode: int) -> str:
    return f"{episode} {'0' * ZEROS}"


def _sampled(stream: bytes) -> int:
    events = (event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event.startswith(b"data: {"))
    return sum(len(choice["token_ids"]) for event in events for choice in orjson.loads(event)["choices"])


async def run(given: argparse.Namespace) -> Window:
    slots = Slots(given.way, given.url, given.first_episode, given.max_tokens)
    return await slots.window(given.slots, warm_up_s=given.warm_up, seconds=given.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=["direct", "gateway"], required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--first-episode", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=200)
    print(msgspec.json.encode(uvloop.run(run(parser.parse_args()))).decode())


if __name__ == "__main__":
    main()
