"""What a campaign found, as a table of kinds and as bench/results/chaos.json."""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.chaos.campaign import Campaign, Struck
from bench.chaos.verdict import Verdict


def results(campaign: Campaign, verdict: Verdict, *, seed: int, steps: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "steps": steps,
        "faults": len(campaign.struck),
        "without_target": [fault.kind.name for fault in campaign.without_target],
        "drivers": campaign.drivers,
        "wall_s": round(campaign.elapsed_s, 1),
        "recovery_s": {kind: _spread(times) for kind, times in by_kind(campaign.struck).items()},
        "groups": verdict.groups,
        "oldest_trained": verdict.oldest,
        "broken": verdict.broken,
        "struck": [_told(one) for one in campaign.struck],
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
    }


def by_kind(struck: Sequence[Struck]) -> dict[str, list[float]]:
    """Seconds from each fault to the next step, by the kind's name; one that nothing came after is left out."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in struck:
        if one.recovered_s is not None:
            found[one.fault.kind.name].append(one.recovered_s)
    return dict(sorted(found.items()))


def write(found: Mapping[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")


def show(console: Console, found: Mapping[str, Any]) -> None:
    drivers = f"{found['drivers']} command lines"
    table = Table(title=f"{found['faults']} faults in {found['steps']} steps, {drivers}, seed {found['seed']}")
    for name in ("fault", "times", "next step after, s: median", "longest"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for kind, spread in found["recovery_s"].items():
        table.add_row(kind, str(spread["times"]), f"{spread['median']:.1f}", f"{spread['longest']:.1f}")
    console.print(table)
    console.print(
        f"groups: {found['groups']}; oldest trained token: {found['oldest_trained']} version(s)", highlight=False
    )
    for line in found["broken"] or ["every promise kept"]:
        console.print(line, style="bold", markup=False, highlight=False)


def _told(one: Struck) -> dict[str, Any]:
    return {
        "fault": one.fault.kind.name,
        "what": one.what,
        "at_s": round(one.at_s, 2),
        "step": one.step,
        "next_step_s": one.recovered_s and round(one.recovered_s, 2),
    }


def _spread(times: Sequence[float]) -> dict[str, float]:
    return {"times": len(times), "median": round(median(times), 2), "longest": round(max(times), 2)}
