"""Faults of every kind in one real run, and what becomes of it: `python -m bench.chaos [--faults 50] [--seed 0]`.

Two vLLM engines, two rollout workers, the gateway, a trainer rank, a reward service and the driver itself are killed,
stopped and delayed at random moments that the seed fixes, and the run directory's disk is filled. With `--nodes` the
run is on three Ray nodes, made on this machine, each with its own network and processes; those with the engines lose
their power, too. At the end every admitted group must have one outcome, the audit must be clean, no token may have been
trained past the staleness bound, and no process may be left.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.chaos import report
from bench.chaos.campaign import Campaign
from bench.chaos.injury import Injuries
from bench.chaos.place import ENGINE_NODES, OnNodes, ThisMachine
from bench.chaos.plan import KINDS, ON_NODES, plan
from bench.chaos.quota import small_disk, unmount
from bench.chaos.ray_nodes import ray_nodes
from bench.chaos.verdict import judge

ROOT = Path(__file__).parents[2]
RUN_FILE = Path(__file__).parent / "run.toml"


def main(
    faults: Annotated[int, typer.Option(min=1)] = 50,
    seed: Annotated[int, typer.Option()] = 0,
    steps: Annotated[int, typer.Option(min=5, help="Of the run.")] = 60,
    max_lag: Annotated[int, typer.Option(min=0, help="The staleness bound K.")] = 1,
    swap_mode: Annotated[str, typer.Option(help="keep, recompute or drain.")] = "recompute",
    kinds: Annotated[str, typer.Option(help="Names of kinds, by commas; all of them when empty.")] = "",
    set_: Annotated[list[str] | None, typer.Option("--set", help="More keys of the run.")] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Three Ray nodes, which may be killed. Takes root.")] = False,
    disk_mib: Annotated[int, typer.Option(help="Size of the run directory's file system.")] = 512,
    runs_dir: Annotated[Path, typer.Option(help="Where the run is kept.")] = ROOT / "runs/chaos",
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "bench/results/chaos.json",
) -> None:
    """Shoot at one run until it is done, then judge it. Exit status 1 when a promise was broken."""
    console = Console(width=120)
    known = ON_NODES if nodes else KINDS
    chosen = [kind for kind in known if not kinds or kind.name in kinds.split(",")]
    if not chosen:
        raise typer.BadParameter(f"no kind is called {kinds!r}; known: {', '.join(kind.name for kind in known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing of the campaign is left
    unmount(runs_dir / "disk")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(runs_dir)
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(small_disk(runs_dir / "disk", disk_mib))
        place = stack.enter_context(_nodes(runs_dir)) if nodes else ThisMachine()
        folder = runs_dir / "disk"
        if disk is None:
            console.print("this machine lets us mount no small file system: the disk is left alone")
        sizes = (f"loop.steps={steps}", f"staleness.max_lag={max_lag}", f'engine.swap_mode="{swap_mode}"')
        injuries = Injuries(place, disk, seed)
        campaign = Campaign(
            RUN_FILE,
            folder / "chaos",
            (*sizes, f'runs_dir="{folder}"', *(set_ or ())),
            place,
            injuries,
            say=lambda line: console.print(line, markup=False, highlight=False),
            log_path=runs_dir / "output.log",
        )
        try:
            campaign.fight(plan(seed, faults, steps=steps, kinds=chosen))
        finally:
            injuries.heal()
            if disk is not None:
                shutil.copytree(folder, runs_dir / "kept", dirs_exist_ok=True)
        verdict = judge(campaign, steps=steps, max_lag=max_lag)
    found = report.results(campaign, verdict, seed=seed, steps=steps)
    report.write(found, out)
    report.show(console, found)
    if verdict.broken:
        raise typer.Exit(1)


@contextlib.contextmanager
def _nodes(runs_dir: Path) -> Iterator[OnNodes]:
    cpus = (2, *[1] * ENGINE_NODES)
    with ray_nodes(runs_dir, *cpus, resources=OnNodes.resources) as made:
        yield OnNodes(made, ROOT)


if __name__ == "__main__":
    typer.run(main)
