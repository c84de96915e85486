"""What the workers of a gateway say, as the one answer of the gateway. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from agentrl.gateway.control_bodies import Engines
from agentrl.types import EngineStatus

BREAKERS = ("closed", "half_open", "open")
LOWEST = ("agentrl_gateway_version", "_created")
"""How the names of metrics end of which the lowest counts: the version that all workers know, the oldest beginning."""


def merged_status(statuses: Sequence[EngineStatus]) -> EngineStatus:
    """One engine, as several workers know it: of each property the worst, so that it is current when all say so."""
    first = statuses[0]
    versions = [status.version for status in statuses]
    return EngineStatus(
        id=first.id,
        url=first.url,
        healthy=all(status.healthy for status in statuses),
        version=None if None in versions else min(version for version in versions if version is not None),
        routable=all(status.routable for status in statuses),
        in_flight=sum(status.in_flight for status in statuses),
        breaker=max((status.breaker for status in statuses), key=BREAKERS.index),
        last_error=next((status.last_error for status in statuses if status.last_error), None),
    )


def merged_engines(answers: Sequence[Engines]) -> Engines:
    """The engines of the first, in its order. One that another worker does not know yet is not routable."""
    known = [{status.id: status for status in answer.engines} for answer in answers]
    engines = []
    for status in answers[0].engines:
        unknown = EngineStatus(id=status.id, url=status.url, healthy=False, version=None)
        engines.append(merged_status([of_worker.get(status.id, unknown) for of_worker in known]))
    return Engines(min(answer.current_version for answer in answers), engines)


def merged_metrics(texts: Sequence[bytes]) -> bytes:
    """Prometheus expositions summed sample by sample, in the order of the first one that has each."""
    registry = CollectorRegistry()
    registry.register(_Merged(texts))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for text in self._texts:
            for family in text_string_to_metric_families(text.decode()):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged = values.setdefault(family.name, {})
                for sample in family.samples:
                    key = sample.name, tuple(sample.labels.items())
                    if key not in merged:
                        merged[key] = sample.value
                    elif family.name.endswith(LOWEST):
                        merged[key] = min(merged[key], sample.value)
                    else:
                        merged[key] += sample.value
        for name, family in families.items():
            for (sample_name, labels), value in values[name].items():
                family.add_sample(sample_name, dict(labels), value)
            yield family
