"""The HTTP subset of a vLLM 0.32 server over the state of a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web
from msgspec import Struct

from agentrl.engine.scripted_metrics import metrics_of
from agentrl.engine.scripted_state import HANG, EngineState, Fault, Reply, Request, scripted_logprob
from agentrl.engine.wire import spans_of
from agentrl.types import Sampling

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Piece(Struct):
    """Some tokens of one generation; the last piece says why it ended."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None = None


def routes(state: EngineState) -> list[web.RouteDef]:
    generations, swaps = Generations(state), Swaps(state)

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=200 if state.is_healthy else 503)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "scripted", "max_model_len": state.max_model_len}]})

    return [
        web.get("/health", health),
        web.get("/metrics", metrics_of(state)),
        web.get("/v1/models", models),
        web.post("/inference/v1/generate", generations.generate),
        web.get("/weight_info", swaps.guarded(swaps.weight_info)),
        web.post("/pause", swaps.guarded(swaps.pause)),
        web.post("/resume", swaps.guarded(swaps.resume)),
        web.get("/is_paused", swaps.guarded(swaps.is_paused)),
        web.post("/sleep", swaps.guarded(swaps.sleep)),
        web.post("/wake_up", swaps.guarded(swaps.wake_up)),
        web.get("/is_sleeping", swaps.guarded(swaps.is_sleeping)),
        web.post("/start_weight_update", swaps.guarded(swaps.start)),
        web.post("/update_weights", swaps.guarded(swaps.update)),
        web.post("/finish_weight_update", swaps.guarded(swaps.finish)),
        web.post("/reset_prefix_cache", swaps.guarded(swaps.reset_prefix_cache)),
    ]


class Generations:
    """`/inference/v1/generate`, streaming and not."""

    def __init__(self, state: EngineState) -> None:
        self.state = state

    async def generate(self, http: web.Request) -> web.StreamResponse:
        state = self.state
        body = await http.json()
        params = body["sampling_params"]
        request = Request(
            request_id=body.get("request_id", ""),
            prompt_ids=body["token_ids"],
            sampling_params=params,
            cache_salt=body.get("cache_salt"),
            model=body.get("model"),
        )
        room = state.max_model_len - len(request.prompt_ids)
        if not request.prompt_ids or room < 1:
            return _error(400, f"the prompt has {len(request.prompt_ids)} tokens, the context {state.max_model_len}")
        state.requests.append(request)
        fault = state.faults.pop(0) if state.faults else None
        await state.notify()
        if fault is not None and fault.kind == "refuse":
            return _error(503, "scripted refusal")
        await state.enter()
        try:
            sampled = state.script(list(request.prompt_ids), _sampling(params), state.version)
            reply = sampled if isinstance(sampled, Reply) else Reply(token_ids=list(sampled))
            pieces = self._sample(request, reply, min(room, params.get("max_tokens") or room), fault)
            if body.get("stream"):
                return await self._stream(http, request, reply, pieces, fault)
            return await self._collect(http, request, reply, pieces, fault)
        except BaseException:
            request.aborted = request.finish_reason is None
            raise
        finally:
            state.running -= 1
            await state.notify()

    async def _sample(self, request: Request, reply: Reply, limit: int, fault: Fault | None) -> AsyncIterator[Piece]:
        """Tokens as the gate lets them through, a new piece every `stream_interval` and where the fault strikes."""
        state, piece, aborts = self.state, Piece([], []), self.state.aborts
        token_ids = list(reply.token_ids)[:limit]
        finish_reason = reply.finish_reason if len(reply.token_ids) <= limit else "length"
        for index, token_id in enumerate(token_ids):
            sent = index - len(piece.token_ids)
            if piece.token_ids and (
                len(piece.token_ids) == state.stream_interval or sent == 0 or (fault and fault.after == index)
            ):
                yield piece
                piece = Piece([], [])
            if not await state.take_token(aborts):
                finish_reason = "abort"
                break
            request.token_ids.append(token_id)
            request.versions.append(state.version)
            logprobs = reply.logprobs
            piece.token_ids.append(token_id)
            piece.logprobs.append(scripted_logprob(token_id, state.version) if logprobs is None else logprobs[index])
            await state.notify()
        piece.finish_reason = finish_reason
        yield piece

    async def _stream(
        self, http: web.Request, request: Request, reply: Reply, pieces: AsyncIterator[Piece], fault: Fault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        sent = 0
        async for piece in pieces:
            due = fault if fault is not None and sent >= fault.after else None
            if due is not None and due.kind in ("die", "stall"):
                return await self._break_off(http, due)
            if due is not None and due.kind == "error":
                await response.write(b'data: {"error": {"message": "scripted error", "code": 500}}\n\n')
                break
            choice = self._choice(request, reply, piece, due)
            request.finish_reason = piece.finish_reason
            event = {"request_id": request.request_id, "choices": [choice]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            for _ in range(2):  # turns of the event loop, in which a reader gets this piece by itself
                await asyncio.sleep(0)
            sent += len(piece.token_ids)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _collect(
        self, http: web.Request, request: Request, reply: Reply, pieces: AsyncIterator[Piece], fault: Fault | None
    ) -> web.StreamResponse:
        whole = Piece([], [])
        async for piece in pieces:
            whole.token_ids += piece.token_ids
            whole.logprobs += piece.logprobs
            whole.finish_reason = piece.finish_reason
        if fault is not None and fault.kind in ("die", "stall"):
            return await self._break_off(http, fault)
        if fault is not None and fault.kind == "error":
            return _error(500, "scripted error")
        choice = self._choice(request, reply, whole, fault)
        request.finish_reason = whole.finish_reason
        return web.json_response({"request_id": request.request_id, "choices": [choice]})

    async def _break_off(self, http: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.kind == "stall":
            await self.state.wait_for(lambda: False)
        assert http.transport is not None
        http.transport.abort()
        return web.Response()

    def _choice(self, request: Request, reply: Reply, piece: Piece, fault: Fault | None) -> dict[str, Any]:
        last = piece.finish_reason is not None
        spans: list[dict[str, Any]] = [
            {"version": str(s.version), "start": s.start, "end": s.end} for s in spans_of(request.versions)
        ]
        kind = fault.kind if fault is not None else None
        if kind == "wrong_spans" and spans:
            spans[-1]["end"] += 1
        content: list[dict[str, Any]] | None = [
            {"token_id": token_id, "logprob": float("nan") if kind == "nan_logprobs" else logprob, "top_logprobs": []}
            for token_id, logprob in zip(piece.token_ids, piece.logprobs, strict=True)
        ]
        if kind == "short_logprobs" and content:
            content.pop()
        return {
            "index": 0,
            "token_ids": piece.token_ids,
            "logprobs": None if kind == "no_logprobs" else {"content": content},
            "finish_reason": piece.finish_reason,
            "stop_reason": reply.stop_reason if last else None,
            "weight_versions": spans if last and spans else None,
        }


class Swaps:
    """The control calls of a weight swap, with vLLM's rules about their order."""

    def __init__(self, state: EngineState) -> None:
        self.state = state

    def guarded(self, handler: Handler) -> Handler:
        """Records the call, and refuses it when the test says so."""

        async def guard(http: web.Request) -> web.StreamResponse:
            name = http.path.strip("/")
            self.state.control_calls.append(name + (f"?{http.query_string}" if http.query_string else ""))
            await self.state.notify()
            status = next((status for call, status in self.state.refuse_swap.items() if call == name), None)
            if status == HANG:
                await self.state.wait_for(lambda: False)
            if status is not None:
                return _error(status, "scripted refusal")
            try:
                return await handler(http)
            finally:
                await self.state.notify()

        return guard

    async def weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.state.label})

    async def is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.state.paused is not None})

    async def pause(self, http: web.Request) -> web.Response:
        state, mode = self.state, http.query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            return _error(400, f"Invalid pause mode: {mode}")
        await self._hold(mode)
        state.cache_resets += http.query.get("clear_cache", "true") == "true"
        return web.json_response({"status": "paused"})

    async def _hold(self, mode: str) -> None:
        """New requests wait; those in flight end as `mode` says."""
        state = self.state
        state.paused = mode
        if mode == "abort":
            state.aborts += 1
        await state.notify()
        if mode != "keep":
            await state.wait_for(lambda: state.running == 0)

    async def resume(self, _: web.Request) -> web.Response:
        self.state.paused = None
        return web.json_response({"status": "resumed"})

    async def sleep(self, http: web.Request) -> web.Response:
        """vLLM's: new requests wait, those in flight end as `mode` says, then the memory goes."""
        state, level, mode = self.state, int(http.query.get("level", "1")), http.query.get("mode", "abort")
        await self._hold(mode)
        if level >= 1:
            state.cache_resets += 1
            state.asleep = {"weights", "kv_cache"}
            state.discarded |= level == 2
        return web.json_response({"status": "sleeping", "level": level})

    async def wake_up(self, http: web.Request) -> web.Response:
        state = self.state
        state.asleep -= set(http.query.getall("tags", ["weights", "kv_cache"]))
        if not state.asleep:
            state.paused = None
        return web.json_response({"status": "sleeping" if state.asleep else "awake"})

    async def is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": bool(self.state.asleep) or self.state.paused is not None})

    async def start(self, _: web.Request) -> web.Response:
        if "weights" in self.state.asleep:
            return _error(500, "the weights are asleep")
        if self.state.update_names is not None:
            return _error(500, "start_weight_update called while a weight update is already active")
        self.state.update_names = set()
        return web.json_response({"message": "Weight update started"})

    async def update(self, http: web.Request) -> web.Response:
        state, info = self.state, (await http.json())["update_info"]
        if state.update_names is None:
            return _error(500, "start_weight_update must be called before update_weights")
        names = set(info.get("names", ()))
        wrong = names & state.update_names
        if state.expected_names is not None:
            wrong |= names - state.expected_names
        if info.get("abort") or wrong:
            state.update_names = None
            return _error(500, f"aborted; twice or unknown: {sorted(wrong)}")
        if state.discarded and info.get("kept"):
            state.update_names = None
            return _error(500, f"forgotten while asleep: {sorted(info['kept'])}")
        state.updates.append(info)
        state.update_names |= names | set(info.get("kept", ()))
        return web.json_response({"message": "Weights updated"})

    async def finish(self, http: web.Request) -> web.Response:
        state = self.state
        if state.update_names is None:
            return _error(500, "finish_weight_update called without a matching start_weight_update")
        missing = (state.expected_names or frozenset()) - state.update_names
        if missing:
            return _error(500, f"missing tensors: {sorted(missing)}")
        state.update_names = None
        state.discarded = False
        label = (await http.json()).get("weight_version") if http.can_read_body else None
        if label is not None:
            state.label = label
        return web.json_response({"message": "Weight update finished"})

    async def reset_prefix_cache(self, http: web.Request) -> web.Response:
        success = self.state.running == 0 or http.query.get("reset_running_requests") == "true"
        self.state.cache_resets += success
        return web.json_response({"success": success})


def _sampling(params: dict[str, Any]) -> Sampling:
    known = {name: params[name] for name in Sampling.__struct_fields__ if params.get(name) is not None}
    return Sampling(**{**known, "stop": tuple(known.get("stop", ()))})


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
