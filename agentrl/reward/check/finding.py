"""What the check of a reward service says."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Finding(Struct, frozen=True):
    """`code` is explained in docs/reward-check.md; `message` is one sentence with the values."""

    code: str
    severity: Literal["error", "warning"]
    message: str
    fix: str


class Load(Struct, frozen=True, kw_only=True):
    """One point of the latency and throughput curve."""

    batch_size: int
    at_once: int  # requests
    p50_ms: float  # of a request
    p99_ms: float
    items_per_s: float


class Report(Struct, frozen=True, kw_only=True):
    url: str
    findings: list[Finding]
    curve: list[Load]
    items: int  # different ones that were asked for
    unscored: int  # of them, without a reward


def error(code: str, message: str, fix: str) -> Finding:
    return Finding(code, "error", message, fix)


def warning(code: str, message: str, fix: str) -> Finding:
    return Finding(code, "warning", message, fix)
