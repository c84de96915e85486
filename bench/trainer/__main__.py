"""How fast the trainer is beside a bare PyTorch loop, what packing gains over padding, and what a publication costs.

python -m bench.trainer [--rounds 5] [--models tiny,small]
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.trainer.child import ROOT, figures_of
from bench.trainer.publish import publish_ratio
from bench.trainer.workload import SMALL, TINY, model_path

SUBJECTS = ("bare", "packed", "padded")
TARGET = 0.9
"""Of the bare loop's trained tokens a second, on the same packed batch."""


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Of each subject, one after another.")] = 5,
    models: Annotated[str, typer.Option(help=f"Of {TINY} (0.8 M parameters) and {SMALL} (12 M).")] = f"{TINY},{SMALL}",
    rows: Annotated[int, typer.Option(help="Rows of the batch.")] = 64,
    longest: Annotated[int, typer.Option(help="Tokens of the longest row.")] = 1024,
    budget: Annotated[int, typer.Option(help="Tokens of one micro-batch.")] = 2048,
    steps: Annotated[int, typer.Option(min=1, help="Steps of one round.")] = 3,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    targets: Annotated[bool, typer.Option(help="Whether a missed target is an error.")] = True,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "bench/results/trainer.json",
) -> None:
    """Measure the trainer and write bench/results/trainer.json."""
    console, notes = Console(width=100), Console(stderr=True)
    sizes = {"rows": rows, "longest": longest, "budget": budget, "steps": steps, "threads": threads}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder, notes.status("") as status:
        for model in models.split(","):
            path = model_path(model, Path(folder))
            played: dict[str, list[dict[str, float]]] = {subject: [] for subject in SUBJECTS}
            for number in range(rounds):
                for subject in SUBJECTS:
                    status.update(f"{model}, round {number + 1} of {rounds}: {subject}")
                    played[subject].append(_subject(subject, path, sizes))
            found[model] = _summary(played)
        status.update("weight publication")
        published = publish_ratio(Path(folder))
    results = {
        "tokens_ratio": min(one["tokens_ratio"] for one in found.values()),
        "packed_gain": min(one["packed_gain"] for one in found.values()),
        "publish_ratio": published["publish_ratio"],
        "models": found,
        "publish": published,
        "plan": {"rounds": rounds, **sizes},
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    console.print(_table(found))
    for model, one in published["models"].items():
        console.print(
            f"publication of {model}, {one['bytes'] / 1e6:.0f} MB: {one['seconds']:.4f} s, "
            f"{one['publish_ratio']:.2f} of a copy's speed",
            highlight=False,
        )
    notes.print(f"written to {out}", highlight=False)
    if targets and results["tokens_ratio"] < TARGET:
        notes.print(
            f"bench-trainer: {results['tokens_ratio']:.3f} of the bare loop; the target is {TARGET}", style="red"
        )
        raise typer.Exit(1)


def _subject(name: str, model: Path, sizes: dict[str, int]) -> dict[str, Any]:
    options = [part for key, value in sizes.items() for part in (f"--{key}", str(value))]
    return figures_of("bench.trainer.subject", name, str(model), *options, threads=sizes["threads"])


def _summary(played: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians over the rounds; a ratio is the median of the ratios of each round, whose subjects ran side by side."""
    rounds = list(zip(*(played[subject] for subject in SUBJECTS), strict=True))
    return {
        "tokens_per_s": {name: median(one["tokens_per_s"] for one in played[name]) for name in SUBJECTS},
        "peak_mib": {name: median(one["peak_mib"] for one in played[name]) for name in SUBJECTS},
        "tokens_ratio": median(packed["tokens_per_s"] / bare["tokens_per_s"] for bare, packed, _ in rounds),
        "packed_gain": median(packed["tokens_per_s"] / padded["tokens_per_s"] for _, packed, padded in rounds),
    }


def _table(found: dict[str, Any]) -> Table:
    shown = Table(title="one optimizer step on a long-tailed batch")
    for name in ("model", "", "trained tokens/s", "peak MiB", "of bare", "over padded"):
        shown.add_column(name, justify="left" if name in ("model", "") else "right")
    for model, one in found.items():
        for subject in SUBJECTS:
            packed = subject == "packed"
            shown.add_row(
                model, subject, f"{one['tokens_per_s'][subject]:,.0f}", f"{one['peak_mib'][subject]:,.0f}",
                f"{one['tokens_ratio']:.3f}" if packed else "", f"{one['packed_gain']:.2f}x" if packed else "",
            )  # fmt: skip
    return shown


if __name__ == "__main__":
    typer.run(main)
