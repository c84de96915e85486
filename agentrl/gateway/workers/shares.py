"""What a gateway may have at a time is divided between its workers, so that the totals hold. Pure."""

from __future__ import annotations

from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.workers.placement import Placement

DIVIDED = ("max_waiting", "max_in_flight_per_engine", "engine_concurrency", "max_sessions", "max_skew")


def share(total: int, at: Placement) -> int:
    """The shares of all workers add up to the total; where there is less than one for each, every worker gets one."""
    return max(1, total // at.count + (at.index < total % at.count))


def config_of_worker(config: GatewayConfig, at: Placement) -> GatewayConfig:
    """The settings of one worker. It attaches no engines by itself: all workers have the same ones."""
    totals = {name: getattr(config, name) for name in DIVIDED}
    shares = {name: share(total, at) for name, total in totals.items() if total is not None}
    return config.model_copy(update=shares | {"engine_urls": (), "workers": 1})
