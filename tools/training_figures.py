"""Train a run file with several seeds, audit each run, and print the figures as a Markdown table.

    .venv/bin/python tools/training_figures.py examples/06_tool_tasks/sql.run.toml --seeds 0 1 2

Every run is kept in runs/<name>-seed<N>. The exit status is 1 when a run fails, or its audit finds something.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path

AGENTRL = [sys.executable, "-m", "agentrl.cli.main"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_file", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="as of agentrl train")
    arguments = parser.parse_args()
    name = tomllib.loads(arguments.run_file.read_text(encoding="utf-8"))["name"]
    rows = []
    for seed in arguments.seeds:
        directory = arguments.runs_dir / f"{name}-seed{seed}"
        settings = [f"runs_dir={arguments.runs_dir}", *arguments.overrides]
        chosen = [part for setting in settings for part in ("--set", setting)]
        train = ["train", str(arguments.run_file), "--seed", str(seed), "--name", directory.name, "--overwrite"]
        for command in ([*train, *chosen], ["audit", str(directory)]):
            if subprocess.run([*AGENTRL, *command], check=False).returncode:
                print(f"agentrl {' '.join(command)} failed", file=sys.stderr)
                return 1
        rows.append(_row(seed, json.loads((directory / "summary.json").read_text(encoding="utf-8"))))
    print("| seed | held-out success before | after | steps | seconds | trajectories | audit |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    return 0


def _row(seed: int, summary: dict[str, float]) -> str:
    return (
        f"| {seed} | {summary['success_start']:.3f} | {summary['success_end']:.3f} | {summary['steps']} | "
        f"{summary['wall_s']:.0f} | {summary['trajectories']} | clean |"
    )


if __name__ == "__main__":
    sys.exit(main())
