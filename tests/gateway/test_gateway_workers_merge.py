"""What several workers say becomes one answer: of loads the sum, of everything else the worst."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agentrl.gateway.control_bodies import Engines
from agentrl.gateway.workers.merge import merged_engines, merged_metrics
from agentrl.gateway.workers.restarts import RestartPolicy, Restarts
from agentrl.types import EngineStatus


def status(**known: object) -> EngineStatus:
    whole = {"id": "e0", "url": "u0", "healthy": True, "version": 3, "routable": True, **known}
    return EngineStatus(**whole)  # type: ignore[arg-type]


def test_an_engine_has_a_version_when_every_worker_knows_it() -> None:
    merged = merged_engines([Engines(3, [status()]), Engines(2, [status(version=2, routable=False)])])
    assert merged == Engines(2, [status(version=2, routable=False)])
    unknown = merged_engines([Engines(3, [status()]), Engines(3, [status(version=None, routable=False)])])
    assert unknown.engines[0].version is None


def test_loads_are_summed_and_the_worst_of_health_and_breaker_counts() -> None:
    one = Engines(3, [status(in_flight=2, breaker="half_open")])
    other = Engines(3, [status(in_flight=5, breaker="open", healthy=False, routable=False, last_error="gone")])
    [merged] = merged_engines([one, other]).engines
    assert merged == status(in_flight=7, breaker="open", healthy=False, routable=False, last_error="gone")


def test_an_engine_that_a_worker_does_not_know_yet_is_not_routable() -> None:
    [merged] = merged_engines([Engines(3, [status()]), Engines(3, [])]).engines
    assert (merged.healthy, merged.routable, merged.version) == (False, False, None)


def exposition(calls: dict[str, int], version: int, latencies_s: list[float]) -> bytes:
    registry = CollectorRegistry()
    counter = Counter("agentrl_gateway_requests", "Calls", ["status"], registry=registry)
    for code, number in calls.items():
        counter.labels(code).inc(number)
    Gauge("agentrl_gateway_version", "Version", registry=registry).set(version)
    Gauge("agentrl_gateway_in_flight", "Calls", registry=registry).set(version)
    histogram = Histogram("agentrl_gateway_latency_seconds", "Seconds", buckets=(1, 2), registry=registry)
    for latency_s in latencies_s:
        histogram.observe(latency_s)
    return generate_latest(registry)


def test_metrics_are_summed_and_the_version_is_the_lowest() -> None:
    merged = merged_metrics(
        [exposition({"200": 3}, 4, [0.5, 1.5]), exposition({"200": 2, "503": 1}, 3, [1.5])]
    ).decode()
    found = dict(line.rsplit(" ", 1) for line in merged.splitlines() if not line.startswith("#"))
    assert found['agentrl_gateway_requests_total{status="200"}'] == "5.0"
    assert found['agentrl_gateway_requests_total{status="503"}'] == "1.0"
    assert (found["agentrl_gateway_version"], found["agentrl_gateway_in_flight"]) == ("3.0", "7.0")
    assert found['agentrl_gateway_latency_seconds_bucket{le="1.0"}'] == "1.0"
    assert found['agentrl_gateway_latency_seconds_bucket{le="+Inf"}'] == "3.0"
    assert found["agentrl_gateway_latency_seconds_sum"] == "3.5"


def test_the_metrics_of_one_worker_stay_as_they_are() -> None:
    text = exposition({"200": 3}, 4, [0.5])
    assert merged_metrics([text]) == text


def test_a_worker_is_started_again_ever_more_slowly_and_given_up_when_it_dies_too_often() -> None:
    restarts = Restarts(RestartPolicy(deaths=3, window_s=100.0, backoff_s=1.0, max_backoff_s=3.0))
    assert [restarts.died(now) for now in (0.0, 1.0, 2.0, 3.0)] == [1.0, 2.0, 3.0, None]


def test_deaths_of_long_ago_do_not_count() -> None:
    restarts = Restarts(RestartPolicy(deaths=1, window_s=10.0, backoff_s=1.0))
    assert [restarts.died(now) for now in (0.0, 10.0, 20.0)] == [1.0, 1.0, 1.0]
