"""Many concurrent sessions on one gateway, in front of an engine that takes its time.

python -m bench.gateway.sessions --sessions 1000 --turns 4 --latency-ms 200
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Annotated

import msgspec
import orjson
import typer
from msgspec import Struct

from bench.gateway.load import Outcome
from bench.gateway.processes import ROOT, Command, Server, free_port
from bench.gateway.quantile import quantile
from bench.gateway.results import SessionLoad
from bench.gateway.rounds import BenchmarkFailed
from bench.gateway.subjects.agentrl import ADMIN_KEY

LIMIT_S = 300.0
RSS_EVERY_S = 0.05


class Load(Struct, frozen=True, kw_only=True):
    """The sessions begin over `spread_s` seconds; between two turns each waits `think_s` on average."""

    sessions: int = 1000
    turns: int = 4
    latency_ms: float = 200.0
    prompt_tokens: int = 2000
    answer_tokens: int = 200
    spread_s: float = 0.0
    think_s: float = 0.0


def run_sessions(load: Load, folder: Path) -> SessionLoad:
    """Starts an engine, a gateway and the clients, each in its own process."""
    sizes = ["--prompt-tokens", str(load.prompt_tokens), "--answer-tokens", str(load.answer_tokens)]
    sizes += ["--turns", str(load.turns)]
    lags = folder / "lags.json"
    with Server("slow-engine", *_engine(load, sizes), folder) as engine:
        with Server("gateway", *_gateway(engine.url, lags, folder), folder) as gateway:
            gateway.wait_until_idle()
            rss = [gateway.rss_bytes()]
            ended = threading.Event()
            watcher = threading.Thread(target=_watch, args=(gateway, rss, ended), daemon=True)
            gateway.stats.send_signal(signal.SIGUSR1)
            watcher.start()
            try:
                outcome = _clients(load, gateway, sizes)
            finally:
                ended.set()
                watcher.join()
        lags_ms = orjson.loads(lags.read_bytes())
    if outcome.errors:
        print(f"bench: the first of {outcome.errors} errors was {outcome.first_error}", file=sys.stderr)
    return SessionLoad(
        sessions=load.sessions,
        turns=load.turns,
        errors=outcome.errors,
        requests=outcome.requests,
        seconds=round(outcome.seconds, 3),
        requests_per_s=round(outcome.requests / outcome.seconds, 1),
        latency_p50_ms=round(outcome.p50_ms, 2),
        latency_p99_ms=round(outcome.p99_ms, 2),
        rss_start_mib=round(rss[0] / 2**20, 1),
        rss_peak_mib=round(max(rss) / 2**20, 1),
        loop_lag_p50_ms=round(quantile(lags_ms, 0.5), 3),
        loop_lag_p99_ms=round(quantile(lags_ms, 0.99), 3),
        loop_lag_max_ms=round(max(lags_ms), 3),
    )


def _engine(load: Load, sizes: list[str]) -> tuple[Command, int]:
    port = free_port()
    argv = [sys.executable, "-m", "bench.gateway.mock_engine", "--port", str(port), *sizes]
    return Command([*argv, "--latency-ms", str(load.latency_ms)]), port


def _gateway(engine_url: str, lags: Path, folder: Path) -> tuple[Command, int]:
    port = free_port()
    argv = [sys.executable, "-m", "bench.gateway.gateway_process", "--engine-url", engine_url, "--port", str(port)]
    argv += ["--store", f"sqlite:///{folder / 'sessions.db'}", "--lags", str(lags)]
    return Command(argv, {"AGENTRL_ADMIN_KEY": ADMIN_KEY}), port


def _clients(load: Load, gateway: Server, sizes: list[str]) -> Outcome:
    argv = [sys.executable, "-m", "bench.gateway.load", "--url", gateway.url, "--sessions", str(load.sessions), *sizes]
    argv += ["--spread-s", str(load.spread_s), "--think-s", str(load.think_s)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=LIMIT_S, check=False)
    gateway.check()
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing was said"]
        raise BenchmarkFailed(f"the clients of {load.sessions} sessions failed: {said[-1]}")
    return msgspec.json.decode(done.stdout, type=Outcome)


def _watch(gateway: Server, rss: list[int], ended: threading.Event) -> None:
    while not ended.wait(RSS_EVERY_S):
        rss.append(gateway.rss_bytes())


def main(
    sessions: Annotated[int, typer.Option(min=1)] = 1000,
    turns: Annotated[int, typer.Option(min=1)] = 4,
    latency_ms: float = 200.0,
    prompt_tokens: int = 2000,
    answer_tokens: int = 200,
    spread_s: Annotated[float, typer.Option(help="Over which the sessions begin.")] = 0.0,
    think_s: Annotated[float, typer.Option(help="Mean time between an answer and the next request.")] = 0.0,
) -> None:
    """Put many concurrent sessions on one gateway, and print what it took as JSON."""
    load = Load(
        sessions=sessions,
        turns=turns,
        latency_ms=latency_ms,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        spread_s=spread_s,
        think_s=think_s,
    )
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder:
        print(msgspec.json.format(msgspec.json.encode(run_sessions(load, Path(folder))), indent=2).decode())


if __name__ == "__main__":
    os.chdir(ROOT)
    typer.run(main)
