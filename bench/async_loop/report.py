"""The results as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.async_loop.arithmetic import shares

COLUMNS = ("step s", "groups/h", "of the bound", "over sync", "trainer waits", "engines idle", "built again", "stale")


def print_results(results: Mapping[str, Any], console: Console) -> None:
    for name in ("scripted", "vllm"):
        if (found := results.get(name)) is not None:
            console.print(_modes(name, found))
            for mode, one in found["modes"].items():
                lags = ", ".join(f"{lag}: {share:.0%}" for lag, share in shares(one["played"]["staleness"]).items())
                console.print(f"  {mode}: trained tokens by their lag in versions: {lags}", highlight=False)
    if (load := results.get("overhead")) is not None:
        console.print(
            f"{load['episodes']:,} episodes at once: {load['cpu_ms_per_turn']:.2f} ms of processor a turn (driver and "
            f"worker {load['driver_ms_per_turn']:.2f}, gateway {load['gateway_ms_per_turn']:.2f}), "
            f"{load['turns_per_s']:.0f} turns/s; event loops late by {load['driver_lag_p99_ms']:.0f} and "
            f"{load['gateway_lag_p99_ms']:.0f} ms (p99), {load['driver_mib']:,.0f} and {load['gateway_mib']:,.0f} MiB",
            highlight=False,
        )


def _modes(name: str, found: Mapping[str, Any]) -> Table:
    bound = found["bound"]
    table = Table(
        title=f"{name}, swaps by {found['swap_mode']}; a step's groups take the rollouts alone "
        f"{bound['rollout_s']:.2f} s, the trainer alone {bound['train_s']:.2f} s"
    )
    table.add_column("", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for mode, one in found["modes"].items():
        compared, played = one["compared"], one["played"]
        stale = played["dropped_tokens"].get("stale", 0)
        table.add_row(
            mode, f"{compared['step_s']:.2f}", f"{compared['groups_per_hour']:,.0f}", f"{compared['bound_ratio']:.3f}",
            f"{compared['gain_over_sync']:.2f}x", f"{compared['trainer_waits']:.0%}", f"{compared['engines_idle']:.0%}",
            f"{played['reprefilled_tokens']:,}", f"{stale:,}",
        )  # fmt: skip
    return table
