"""The gateway's Prometheus metrics, in a registry of its own so that several gateways fit in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agentrl.types import Call

M = TypeVar("M", Counter, Histogram)

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Model calls answered", "dialect", "status")
        self.tokens = self._counter("tokens", "Tokens of calls that an engine answered", "kind")
        self.untrainable = self._counter("untrainable_tokens", "Sampled tokens that must not be trained", "reason")
        self.branches = self._counter(
            "branches", "Calls that start a new branch in a session: history rewritten, or not bridgeable", "cause"
        )
        self.failovers = self._counter(
            "failovers", "Calls that an engine lost and another took over: continued, or begun anew", "how"
        )
        self.kept_tokens = self._counter("failover_tokens", "Sampled tokens that were kept when their engine was lost")
        self.routed = self._counter("routed", "How calls found their engine", "how")
        self.repeats = self._counter(
            "repeats", "Requests that were sent again: answered from the record, or sampled anew", "how"
        )
        self.drift = self._counter(
            "drift_tokens", "Tokens of finished sessions that a fresh rendering would have written otherwise", "history"
        )
        self.abandoned = self._counter(
            "sessions_abandoned", "Sessions that nobody finished: saved, empty, or lost to the store", "outcome"
        )
        self.latency = _found_quickly(
            Histogram(
                "agentrl_gateway_latency_seconds",
                "Seconds from a request's first byte to its answer",
                ["dialect"],
                buckets=LATENCY_BUCKETS_S,
                registry=self.registry,
            )
        )

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A value that is read when it is asked for."""
        Gauge(f"agentrl_gateway_{name}", text, registry=self.registry).set_function(read)

    def saw_call(self, call: Call) -> None:
        self.tokens.labels("prompt").inc(len(call.prompt_token_ids))
        self.tokens.labels("sampled").inc(len(call.token_ids))
        if call.untrainable is not None:
            self.untrainable.labels(call.untrainable).inc(len(call.token_ids))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return _found_quickly(Counter(f"agentrl_gateway_{name}_total", text, labels, registry=self.registry))


def _found_quickly(metric: M) -> M:
    """To find what its labels name takes longer than to count. There are as many as labels have values: a few."""
    metric.labels = cache(metric.labels)  # type: ignore[method-assign]
    return metric
