"""The engine that every gateway gets: answers written beforehand, so that next to no time is the engine's.

    python -m bench.gateway.mock_engine --port 9000

It speaks chat completions and `/inference/v1/generate` as a stream. An answer leaves in one piece, `latency-ms` after
its request; with `separate-writes` each event of a stream leaves by itself, spread evenly over the latency.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import cast

import httptools
import uvloop

from bench.gateway.answers import Answers
from bench.gateway.workload import Sizes, Workload

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class EngineProtocol(asyncio.Protocol):
    """One keep-alive connection; requests on it come one after the other."""

    def __init__(self, answers: Answers, *, latency_s: float, separate_writes: bool) -> None:
        self._answers = answers
        self._latency_s = latency_s
        self._separate_writes = separate_writes
        self._url = b""
        self._body: list[bytes] = []
        self._timers: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        if self._url == b"/inference/v1/generate":
            self._stream(self._answers.interval(body))
        elif self._url == b"/v1/chat/completions":
            self._after(self._latency_s, self._answers.chat(body))
        else:
            self._transport.write(self._answers.fixed.get(self._url, NOT_FOUND))

    def _stream(self, interval: int) -> None:
        if not self._separate_writes:
            self._after(self._latency_s, self._answers.stream(interval))
            return
        self._timers.clear()
        self._transport.write(self._answers.stream_head)
        events = self._answers.events(interval)
        for index, event in enumerate(events, 1):
            self._after(self._latency_s * index / len(events), event)

    def _after(self, seconds: float, data: bytes) -> None:
        if seconds or self._separate_writes:
            self._timers.append(asyncio.get_running_loop().call_later(seconds, self._transport.write, data))
        else:
            self._transport.write(data)


async def serve(port: int, answers: Answers, *, latency_s: float, separate_writes: bool) -> None:
    def connect() -> EngineProtocol:
        return EngineProtocol(answers, latency_s=latency_s, separate_writes=separate_writes)

    server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=Sizes().prompt_tokens)
    parser.add_argument("--answer-tokens", type=int, default=Sizes().answer_tokens)
    parser.add_argument("--turns", type=int, default=Sizes().turns)
    parser.add_argument("--stream-interval", type=int, default=8, help="tokens in one event; 0 is all in one")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--separate-writes", action="store_true")
    given = parser.parse_args()
    workload = Workload(Sizes(given.prompt_tokens, given.answer_tokens, given.turns))
    answers = Answers(workload, given.stream_interval)
    uvloop.run(serve(given.port, answers, latency_s=given.latency_ms / 1000, separate_writes=given.separate_writes))


if __name__ == "__main__":
    main()
