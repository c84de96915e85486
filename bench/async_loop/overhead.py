"""What the control loop itself costs with many episodes at once."""

from __future__ import annotations

from typing import Any

from bench.async_loop import scripted
from bench.async_loop.arithmetic import cpu_ms_per_turn
from bench.async_loop.workload import LogNormal, Plan, Workload

GROUP_SIZE = 8
MAX_LAG = 16


def plan(episodes: int, *, steps: int, warm_steps: int, profile: str = "") -> Plan:
    """A fully asynchronous loop that keeps so many episodes under way; a turn takes some twenty seconds.

    Three times as many are admitted: most of a group's are done long before its last one, and groups wait for a step.
    """
    per_step = max(1, 3 * episodes // ((MAX_LAG + 1) * GROUP_SIZE))
    return Plan(
        max_lag=MAX_LAG,
        steps=steps,
        warm_steps=warm_steps,
        groups_per_step=per_step,
        group_size=GROUP_SIZE,
        concurrency=episodes,
        train_s=1.0,
        workload=Workload(tool_s=LogNormal(6.0, 1.0, 30.0)),
        profile=profile,
    )


def measure(given: Plan) -> dict[str, Any]:
    ran = scripted.run(given, engine=("--slots", str(given.concurrency), "--token-ms", "200"))
    played = ran.played
    return {
        "episodes": given.concurrency,
        "cpu_ms_per_turn": cpu_ms_per_turn(played),
        "driver_ms_per_turn": cpu_ms_per_turn(played, ("driver",)),
        "gateway_ms_per_turn": cpu_ms_per_turn(played, ("gateway",)),
        "turns": played.turns,
        "turns_per_s": played.turns / played.seconds,
        "seconds": played.seconds,
        "sequences": played.sequences,
        "driver_lag_p99_ms": played.lag_p99_ms,
        "gateway_lag_p99_ms": ran.gateway_lag_p99_ms,
        "driver_mib": played.rss_mib["driver"],
        "gateway_mib": played.rss_mib["gateway"],
    }
