"""How every preset learns the calculator, and what corrections do for episodes that are several versions old.

python -m bench.curves [--presets dapo,ppo] [--seeds 0,1,2] [--steps 20]

Every run is a real one (`agentrl train`, then `agentrl audit`); those that are there already are taken as they are, so
that an interrupted benchmark goes on.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
RUN_FILE = ROOT / "examples/01_calculator/run.toml"
AGENTRL = [sys.executable, "-m", "agentrl.cli.main"]
PRESETS = (
    "grpo,dr_grpo,rloo,reinforce,reinforce_plus_plus,reinforce_plus_plus_baseline,dapo,gspo,cispo,ppo,decoupled_ppo,"
    "turn_level,tis"
)
STALE = ("staleness.max_lag=4", 'trainer.loss.old_policy="proximal"')
CORRECTIONS = ("none", "tis", "icepop", "mis", "sequence_mask", "geometric_mask")
TIMEOUT_S = 1800


class Case(NamedTuple):
    """One row of the table: a name and the keys that are set beside the run file's."""

    name: str
    settings: tuple[str, ...]


def cases(presets: str, corrections: str) -> Iterator[Case]:
    for preset in filter(None, presets.split(",")):
        yield Case(preset, (f'preset="{preset}"', *(OWN_SETTINGS.get(preset, ()))))
    for correction in filter(None, corrections.split(",")):
        yield Case(f"stale4_{correction}", (*STALE, f'trainer.correction.preset="{correction}"'))


OWN_SETTINGS = {"dr_grpo": ("trainer.aggregation.length=64",)}
"""What a preset leaves to its user: the calculator's answers have up to 64 tokens."""


def main(
    presets: Annotated[str, typer.Option(help="Presets of docs/algorithms.md, or nothing.")] = PRESETS,
    corrections: Annotated[str, typer.Option(help="Of runs that train up to 4 versions back.")] = ",".join(CORRECTIONS),
    seeds: Annotated[str, typer.Option()] = "0,1,2",
    steps: Annotated[int, typer.Option(min=1)] = 20,
    tasks: Annotated[int, typer.Option(help="Held-out tasks of each evaluation.")] = 128,
    runs_dir: Annotated[Path, typer.Option(help="Where the runs are kept.")] = ROOT / "runs/curves",
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "bench/results/curves.json",
) -> None:
    """Train every case with every seed and write bench/results/curves.json with their curves."""
    console, notes = Console(width=100), Console(stderr=True)
    found: dict[str, dict[str, Any]] = {}
    for case in cases(presets, corrections):
        found[case.name] = {"settings": case.settings, "seeds": {}}
        for seed in seeds.split(","):
            directory = runs_dir / f"{case.name}-{steps}-seed{seed}"
            sizes = (f"loop.steps={steps}", f"evaluation.tasks={tasks}", f"runs_dir={runs_dir}")
            one = _run(directory, seed, (*case.settings, *sizes))
            found[case.name]["seeds"][seed] = one
            notes.print(f"{case.name}, seed {seed}: {one['before']:.3f} -> {one['after']:.3f}", highlight=False)
    results = {
        "steps": steps,
        "cases": found,
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    console.print(_table(found))
    notes.print(f"written to {out}", highlight=False)


def _run(directory: Path, seed: str, settings: tuple[str, ...]) -> dict[str, Any]:
    """The curve of one run. A run that did not end, or whose audit finds something, ends the benchmark."""
    if not _is_done(directory):
        chosen = [part for setting in settings for part in ("--set", setting)]
        _agentrl("train", str(RUN_FILE), "--seed", seed, "--name", directory.name, "--overwrite", *chosen)
    _agentrl("audit", str(directory))
    summary = json.loads((directory / "summary.json").read_text())
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)
    of_steps = [record for record in records if record["kind"] == "step"]
    return {
        "before": summary["success_start"],
        "after": summary["success_end"],
        "wall_s": summary["wall_s"],
        "success": [round(record["success"], 4) for record in of_steps],
        "kl_k3": [record["trainer"].get("kl_k3") for record in of_steps],
        "lag": _mean_lag(of_steps),
    }


def _mean_lag(of_steps: list[dict[str, Any]]) -> float:
    lags = [(int(lag), tokens) for record in of_steps for lag, tokens in record["staleness"].items()]
    return sum(lag * tokens for lag, tokens in lags) / max(1, sum(tokens for _, tokens in lags))


def _is_done(directory: Path) -> bool:
    summary = directory / "summary.json"
    return summary.is_file() and json.loads(summary.read_text())["ended"] == "done"


def _agentrl(*arguments: str) -> None:
    done = subprocess.run(
        [*AGENTRL, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"agentrl {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-3000:]}")


def _table(found: dict[str, dict[str, Any]]) -> Table:
    shown = Table(title="held-out success on the calculator")
    for name in ("case", "before", "after, each seed", "mean after", "mean lag", "seconds"):
        shown.add_column(name, justify="left" if name == "case" else "right")
    for name, case in found.items():
        runs = list(case["seeds"].values())
        shown.add_row(
            name, f"{mean(one['before'] for one in runs):.3f}", " ".join(f"{one['after']:.3f}" for one in runs),
            f"{mean(one['after'] for one in runs):.3f}", f"{mean(one['lag'] for one in runs):.2f}",
            f"{mean(one['wall_s'] for one in runs):.0f}",
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    typer.run(main)
