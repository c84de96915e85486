"""What a reward service has done and cost so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class ServiceStats:
    """Since the start of the run. `outage_s` is time in which items waited and no server took a request."""

    requests: int = 0  # that were answered in full
    items: int = 0  # scored
    failures: int = 0  # items left without a score
    late: int = 0  # items that nobody could use any more when the service was out: no failures
    request_s: float = 0.0  # of the answered requests
    outage_s: float = 0.0
    failed_requests: Counter[str] = field(default_factory=Counter)  # outage, trouble -> requests

    def answered(self, items: int, seconds: float) -> None:
        self.requests += 1
        self.items += items
        self.request_s += seconds

    def as_metrics(self) -> dict[str, float]:
        failed = {f"failed_{kind}": float(count) for kind, count in self.failed_requests.items()}
        return {
            "requests": float(self.requests),
            "items": float(self.items),
            "failures": float(self.failures),
            "late": float(self.late),
            "request_s": self.request_s,
            "outage_s": self.outage_s,
            **failed,
        }
