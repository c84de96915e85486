"""A scripted engine that takes its time: a token every so many seconds for each sequence, as many sequences as fit.

    python -m bench.async_loop.paced_engine --port 8080 --token-ms 8

Answers are as long as the log-normal says; which length, the prompt decides, so that the work is the same in every
run. Time is the engine's own: it stands still while the engine is paused, and for the prefill of what `recompute` has
it build again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import zlib
from array import array
from bisect import bisect_right

import msgspec
import uvloop
from aiohttp import web
from aiohttp.typedefs import Handler
from tokenizers import Tokenizer

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.scripted_http import routes
from agentrl.engine.scripted_state import EngineState, scripted_logprob
from agentrl.engine.wire import spans_of
from bench.async_loop.workload import LogNormal

GENERATE = "/inference/v1/generate"
PIECE = 16
"""Tokens in one event of a stream."""


class Clock:
    """Seconds that the engine could work: it stands still from `stop` to `go`."""

    def __init__(self) -> None:
        self._offset = time.monotonic()
        self._stopped_at: float | None = None
        self._moving = asyncio.Event()
        self._moving.set()
        self._starting: asyncio.TimerHandle | None = None

    def now(self) -> float:
        return (time.monotonic() if self._stopped_at is None else self._stopped_at) - self._offset

    def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self._moving.clear()

    def go(self, after_s: float) -> None:
        self._starting = asyncio.get_running_loop().call_later(after_s, self._go)

    def _go(self) -> None:
        if self._stopped_at is not None:
            self._offset += time.monotonic() - self._stopped_at
            self._stopped_at = None
            self._moving.set()

    async def until(self, moment: float) -> None:
        while (left := moment - self.now()) > 0 or self._stopped_at is not None:
            if self._stopped_at is not None:
                await self._moving.wait()
            else:
                await asyncio.sleep(left)


class PacedEngine(EngineState):
    def __init__(
        self, lengths: LogNormal, *, token_s: float, slots: int, prefill_s: float, load_s: float, answer: list[int]
    ) -> None:
        super().__init__(lambda *_: answer)
        self._lengths, self._token_s, self._prefill_s, self._load_s = lengths, token_s, prefill_s, load_s
        self._slots = asyncio.Semaphore(slots)
        self._answer = answer
        self.clock = Clock()
        self._changes: list[tuple[float, int]] = [(0.0, 0)]  # engine time -> the version from then on
        self._sequences: dict[int, tuple[int, float, int]] = {}  # prompt tokens, when its first token began, its length
        self._owed_s = 0.0  # of prefill, before anything else

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**28, middlewares=[self._paced])
        app.add_routes([route for route in routes(self) if route.path != GENERATE])
        app.router.add_post(GENERATE, self._generate)
        return app

    @web.middleware
    async def _paced(self, http: web.Request, handler: Handler) -> web.StreamResponse:
        """Time stands still from a pause to a resume; weights take their time; what lost its cache is built again."""
        if http.path == "/pause" and http.query.get("mode") == "keep":
            self.clock.stop()
            if http.query.get("clear_cache") == "true":
                self._owed_s = self._lost_tokens() * self._prefill_s
        if http.path == "/update_weights":
            await asyncio.sleep(self._load_s)
        response = await handler(http)
        if http.path == "/finish_weight_update":
            self._changes.append((self.clock.now(), self.version))
        if http.path in ("/resume", "/wake_up"):
            self.clock.go(self._owed_s)
            self._owed_s = 0.0
        return response

    def _lost_tokens(self) -> int:
        """Whose KV cache is to be built again: of each sequence the prompt and what was sampled."""
        now = self.clock.now()
        return sum(
            prompt + min(length, int(max(0.0, now - began) / self._token_s))
            for prompt, began, length in self._sequences.values()
        )

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        prompt, params = body["token_ids"], body["sampling_params"]
        digest = zlib.crc32(array("i", prompt).tobytes())
        length = min(max(1, round(self._lengths.draw(str(digest)))), params.get("max_tokens") or 1 << 30)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        async with self._slots:
            await self.enter()
            try:
                await self._sample(response, body.get("request_id", ""), prompt, digest, length)
            finally:
                self.running -= 1
                self._sequences.pop(id(response), None)
                await self.notify()
        await response.write_eof()
        return response

    async def _sample(
        self, response: web.StreamResponse, request_id: str, prompt: list[int], digest: int, length: int
    ) -> None:
        began = self.clock.now() + len(prompt) * self._prefill_s
        self._sequences[id(response)] = (len(prompt), began, length)
        body = self._answer[:-1]
        token_ids = [body[(digest + index) % len(body)] for index in range(length - 1)] + self._answer[-1:]
        for start in range(0, length, PIECE):
            piece = token_ids[start : start + PIECE]
            await self.clock.until(began + (start + len(piece)) * self._token_s)
            last = start + len(piece) == length
            versions = self._versions(began, length) if last else [self.version] * len(piece)
            logprobs = [
                {"token_id": token, "logprob": scripted_logprob(token, 0), "top_logprobs": []} for token in piece
            ]
            choice = {
                "index": 0,
                "token_ids": piece,
                "logprobs": {"content": logprobs},
                "finish_reason": "stop" if last else None,
                "stop_reason": None,
                "weight_versions": _spans(versions) if last else None,
            }
            event = json.dumps({"request_id": request_id, "choices": [choice]}, separators=(",", ":"))
            await response.write(b"data: " + event.encode() + (b"\n\ndata: [DONE]\n\n" if last else b"\n\n"))

    def _versions(self, began: float, length: int) -> list[int]:
        """Of each token, by when in the engine's own time it was sampled."""
        moments = [moment for moment, _ in self._changes]
        return [self._changes[bisect_right(moments, began + index * self._token_s) - 1][1] for index in range(length)]


def _spans(versions: list[int]) -> list[dict[str, object]]:
    return [{"version": str(span.version), "start": span.start, "end": span.end} for span in spans_of(versions)]


async def serve(given: argparse.Namespace) -> None:
    tokenizer = Tokenizer.from_file(str(resolve_model(EMBEDDED) / "tokenizer.json"))
    answer = [
        *tokenizer.encode("so many words of an answer that says little", add_special_tokens=False).ids,
        tokenizer.token_to_id("<|im_end|>"),
    ]
    lengths = msgspec.json.decode(given.lengths, type=LogNormal)
    engine = PacedEngine(
        lengths,
        token_s=given.token_ms / 1000,
        slots=given.slots,
        prefill_s=given.prefill_ms / 1000,
        load_s=given.load_s,
        answer=answer,
    )
    runner = web.AppRunner(engine.app(), handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", given.port, backlog=4096).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lengths", required=True, help="a LogNormal as JSON")
    parser.add_argument("--token-ms", type=float, default=8.0)
    parser.add_argument("--prefill-ms", type=float, default=0.025, help="of one token of a prompt")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--load-s", type=float, default=0.1, help="that one group of weights takes")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
