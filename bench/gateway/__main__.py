"""The gateway benchmark: `make bench-gateway`, or `python -m bench.gateway` in the project's environment.

Rules: every gateway runs in a process of its own, as its authors start it, with recording on and request logs off;
all get the same clients (raw keep-alive connections in their own process, a closed loop), the same conversations and
the same answers from one mock engine (written beforehand, so that its time is next to nothing); rounds are
interleaved and their medians taken. Each episode has a system message that all share and user messages of its own.
What a gateway asks for beside model calls (opening and ending sessions) is inside the measured time and not counted as
requests. After each round one more episode is read back, to see that it was recorded; between two rounds a gateway
may finish what it put off, uncounted. agentrl records to SQLite before it answers, rllm-model-gateway to SQLite after
it, OpenEnv in memory.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from bench.gateway.processes import ROOT, ServerFailed
from bench.gateway.report import print_results
from bench.gateway.results import missed
from bench.gateway.rounds import BenchmarkFailed, Plan, measure
from bench.gateway.sessions import Load, run_sessions
from bench.gateway.subjects import COMPARED, SUBJECTS
from bench.gateway.workload import Sizes

TABLE_WIDTH = 120
QUICK = Plan(names=("none", "agentrl"), sizes=Sizes(300, 32, 2), rounds=1, seconds=0.5, warm_up_s=0.2)
QUICK_LOAD = Load(sessions=20, turns=2, latency_ms=20, prompt_tokens=200, answer_tokens=16)


def main(
    only: Annotated[str, typer.Option(help=f"Gateways to measure, of {', '.join(SUBJECTS)}.")] = ",".join(
        subject.name for subject in COMPARED
    ),
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="Of one round of one gateway.")] = 4.0,
    stream_interval: Annotated[int, typer.Option(help="Tokens in one event of the engine; 0 is all in one.")] = 8,
    quick: Annotated[bool, typer.Option(help="Tiny sizes, no peers, no vLLM: does the harness work?")] = False,
    skip_peers: Annotated[bool, typer.Option(help="Without the other projects' gateways.")] = False,
    skip_vllm: Annotated[bool, typer.Option(help="Without the real engine.")] = False,
    skip_sessions: Annotated[bool, typer.Option(help="Without the 1,000 concurrent sessions.")] = False,
    targets: Annotated[bool, typer.Option(help="Whether a missed target is an error.")] = True,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "bench/results/gateway.json",
) -> None:
    """Measure the gateways and write bench/results/gateway.json."""
    console, notes = Console(), Console(stderr=True)
    console.width = max(console.width, TABLE_WIDTH)
    names = [name for name in only.split(",") if not (skip_peers and name in ("rllm", "openenv"))]
    if unknown := [name for name in names if name not in SUBJECTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: not one of {', '.join(SUBJECTS)}")
    plan = Plan(names=names, rounds=rounds, seconds=seconds, stream_interval=stream_interval)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    try:
        with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder, notes.status("") as status:
            results = measure(QUICK if quick else plan, Path(folder), status.update)
            if not skip_sessions:
                status.update("many concurrent sessions")
                results.sessions = run_sessions(QUICK_LOAD if quick else Load(), Path(folder))
            if not (skip_vllm or quick):
                from bench.gateway.vllm_engine import measure_vllm  # it imports the engine's start-up code

                measure_vllm(results, Path(folder), status.update, rounds=rounds)
    except (BenchmarkFailed, ServerFailed) as failure:
        notes.print(f"bench-gateway: {failure}", style="red", markup=False)
        raise typer.Exit(1) from None
    results.versions = {name: _version(name) for name in results.requests_per_s_32}
    results.machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2))
    print_results(results, console)
    notes.print(f"written to {out}", highlight=False)
    if targets and not quick and (misses := missed(results)):
        for sentence in misses:
            notes.print(f"bench-gateway: {sentence}", style="red", highlight=False)
        raise typer.Exit(1)


def _version(name: str) -> str:
    subject = SUBJECTS[name]
    if not subject.distribution:
        return ""
    ask = f"from importlib.metadata import version; print(version({subject.distribution!r}))"
    return subprocess.run([subject.python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    typer.run(main)
