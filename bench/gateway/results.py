"""What the benchmark found, as it is written to `bench/results/gateway.json`, and whether that is good enough.

Names of gateways are keys: none, agentrl, rllm, openenv. Every number is the median of its rounds.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

SPEED_UP = {"rllm": 8.0, "openenv": 5.0}
"""agentrl's requests/s at 32 clients over a peer's, at least."""
MAX_OVERHEAD_MS = 2.0
"""agentrl's p50 at 1 client over that without a gateway, less than this."""
MIN_RATIO = 0.95
MAX_LAG_MS = 100.0

ByName = dict[str, float]


class SessionLoad(Struct, kw_only=True):
    """Many concurrent sessions on one gateway. Lag is how late its event loop wakes a sleeper."""

    sessions: int
    turns: int
    errors: int
    requests: int
    seconds: float
    requests_per_s: float
    latency_p50_ms: float
    latency_p99_ms: float
    rss_start_mib: float
    rss_peak_mib: float
    loop_lag_p50_ms: float
    loop_lag_p99_ms: float
    loop_lag_max_ms: float


class Results(Struct, kw_only=True, omit_defaults=True):
    """None and {} are what was not measured."""

    requests_per_s_32: ByName = {}
    p50_ms_1: ByName = {}
    vllm_tokens_ratio: float | None = None
    prefix_hit_ratio: float | None = None
    p99_ms_1: ByName = {}
    requests_per_s_1: ByName = {}
    p50_ms_32: ByName = {}
    p99_ms_32: ByName = {}
    cpu_ms_per_request_32: ByName = {}  # of all processes of the gateway
    rss_mib: ByName = {}
    prompt_tokens: ByName = {}  # mean of one episode, as the gateway recorded it
    vllm: dict[str, Any] = {}
    prefix: dict[str, Any] = {}
    sessions: SessionLoad | None = None
    sizes: dict[str, int] = {}
    rounds: int = 0
    seconds: float = 0.0
    versions: dict[str, str] = {}
    machine: dict[str, Any] = field(default_factory=dict)


def missed(results: Results) -> list[str]:
    """One sentence for each target that was measured and missed."""
    found = []
    speed, latency = results.requests_per_s_32, results.p50_ms_1
    for peer, factor in SPEED_UP.items():
        if "agentrl" in speed and peer in speed and speed["agentrl"] < factor * speed[peer]:
            found.append(
                f"agentrl served {speed['agentrl']:.0f} requests/s at 32 clients, {speed['agentrl'] / speed[peer]:.1f} "
                f"times {peer}'s {speed[peer]:.0f}; the target is {factor:g} times"
            )
    if "agentrl" in latency and "none" in latency:
        overhead = latency["agentrl"] - latency["none"]
        if overhead >= MAX_OVERHEAD_MS:
            found.append(
                f"agentrl adds {overhead:.2f} ms at 1 client (p50); the target is under {MAX_OVERHEAD_MS:g} ms"
            )
    for name, ratio in (
        ("tokens/s of vLLM through the gateway over those without", results.vllm_tokens_ratio),
        ("prefix-cache hits over the possible ones", results.prefix_hit_ratio),
    ):
        if ratio is not None and ratio < MIN_RATIO:
            found.append(f"{name}: {ratio:.3f}; the target is {MIN_RATIO:g}")
    if (load := results.sessions) is not None:
        if load.errors:
            found.append(f"{load.errors} of {load.sessions} concurrent sessions failed; the target is none")
        if load.loop_lag_p99_ms >= MAX_LAG_MS:
            found.append(
                f"the gateway's event loop lags {load.loop_lag_p99_ms:.0f} ms (p99) with {load.sessions} sessions; "
                f"the target is under {MAX_LAG_MS:g} ms"
            )
    return found
