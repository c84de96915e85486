"""What the loop gains by not waiting, and what it costs: `make bench-async`, or `python -m bench.async_loop`.

The same work synchronous, one step off and asynchronous: over a scripted engine that takes its time, with a twin for
the trainer, and over real vLLM with the embedded policy and the real trainer. Beside them what no loop can beat: the
rollouts alone, with as many episodes at once, and the trainer alone.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from bench.async_loop import overhead, scripted, vllm
from bench.async_loop.arithmetic import Played, bound_of, compared
from bench.async_loop.report import print_results
from bench.async_loop.workload import Plan
from bench.gateway.processes import ROOT, ServerFailed

MODES = {"sync": 0, "one_step_off": 1, "async": 4}
TARGET = 0.9
"""Of the bound, for the asynchronous mode."""


def main(
    steps: Annotated[int, typer.Option(min=2, help="Of a mode, those that are measured.")] = 12,
    vllm_steps: Annotated[int, typer.Option(min=2, help="The same, with vLLM.")] = 8,
    warm_steps: Annotated[int, typer.Option(min=1, help="Before them.")] = 3,
    episodes: Annotated[int, typer.Option(min=40, help="At once, where the loop's own cost is measured.")] = 2000,
    skip_scripted: Annotated[bool, typer.Option(help="Without the scripted engine.")] = False,
    skip_vllm: Annotated[bool, typer.Option(help="Without the real engine.")] = False,
    skip_overhead: Annotated[bool, typer.Option(help="Without the many episodes.")] = False,
    targets: Annotated[bool, typer.Option(help="Whether a missed target is an error.")] = True,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "bench/results/async.json",
) -> None:
    """Measure the loop's modes and write bench/results/async.json."""
    console, notes = Console(width=120), Console(stderr=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    found: dict[str, Any] = {}
    try:
        with notes.status("") as status:
            if not skip_scripted:
                found["scripted"] = _scripted(
                    Plan(max_lag=None, steps=warm_steps + steps, warm_steps=warm_steps), status
                )
            if not skip_overhead:
                status.update(f"{episodes} episodes at once")
                found["overhead"] = overhead.measure(overhead.plan(episodes, steps=9, warm_steps=5))
            if not skip_vllm:
                found["vllm"] = _vllm(vllm.plan_of(warm_steps + vllm_steps, warm_steps), status)
    except ServerFailed as failure:
        notes.print(f"bench-async: {failure}", style="red", markup=False)
        raise typer.Exit(1) from None
    results = {
        **_headline(found),
        **found,
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2))
    print_results(results, console)
    notes.print(f"written to {out}", highlight=False)
    if targets and (
        missed := [name for name in ("scripted", "vllm") if name in found and _ratio(found[name]) < TARGET]
    ):
        for name in missed:
            notes.print(
                f"bench-async: on {name}, the asynchronous loop reaches {_ratio(found[name]):.3f} of the bound; the "
                f"target is {TARGET}",
                style="red",
            )
        raise typer.Exit(1)


def _scripted(sampling: Plan, status: Any) -> dict[str, Any]:
    played: dict[str, Played] = {}
    for name, max_lag in {"rollouts alone": None, **MODES}.items():
        status.update(f"scripted engine: {name}")
        played[name] = scripted.run(msgspec.structs.replace(sampling, max_lag=max_lag)).played
    return summary(played, groups_per_step=sampling.groups_per_step, swap_mode=sampling.swap_mode)


def _vllm(sampling: Plan, status: Any) -> dict[str, Any]:
    played = vllm.measure(MODES, sampling, status.update)
    return summary(played, groups_per_step=sampling.groups_per_step, swap_mode=sampling.swap_mode)


def summary(played: dict[str, Played], *, groups_per_step: int, swap_mode: str) -> dict[str, Any]:
    """`played`: by the mode's name, and the run that only samples as "rollouts alone"."""
    alone, sync = played["rollouts alone"], played["sync"]
    bound = bound_of(alone, sync, groups_per_step=groups_per_step)
    return {
        "bound": msgspec.to_builtins(bound),
        "swap_mode": swap_mode,
        "rollouts_alone": msgspec.to_builtins(alone),
        "modes": {
            mode: {
                "compared": msgspec.to_builtins(compared(played[mode], sync, bound)),
                "played": msgspec.to_builtins(played[mode]),
            }
            for mode in MODES
        },
    }


def _ratio(found: dict[str, Any]) -> float:
    return float(found["modes"]["async"]["compared"]["bound_ratio"])


def _headline(found: dict[str, Any]) -> dict[str, Any]:
    """Of the engines that were measured, the worse one."""
    engines = [found[name] for name in ("scripted", "vllm") if name in found]
    headline: dict[str, Any] = {}
    if engines:
        headline["bound_ratio"] = min(map(_ratio, engines))
        gains = [one["modes"]["async"]["compared"]["gain_over_sync"] for one in engines]
        headline["gain_over_sync"] = min(gains)
    if "overhead" in found:
        headline["cpu_ms_per_turn"] = found["overhead"]["cpu_ms_per_turn"]
    return headline


if __name__ == "__main__":
    typer.run(main)
