"""`/metrics` of a scripted engine: the few of vLLM's that say how busy it is, as the test sets them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from agentrl.engine.scripted_state import EngineState


def metrics_of(state: EngineState) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def metrics(_: web.Request) -> web.Response:
        values = {
            "vllm:num_requests_running": float(state.running),
            "vllm:num_requests_waiting": float(state.waiting),
            "vllm:kv_cache_usage_perc": state.kv_use,
            "vllm:num_preemptions_total": float(state.preemptions),
        }
        lines = [f'{name}{{engine="0",model_name="scripted"}} {value}' for name, value in values.items()]
        return web.Response(text="\n".join([*lines, ""]))

    return metrics
