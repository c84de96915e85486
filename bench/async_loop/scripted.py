"""Plays a plan: engine, gateway and driver, each in a process of its own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import orjson

from bench.async_loop.arithmetic import Played
from bench.async_loop.workload import Plan
from bench.gateway.processes import ROOT, Command, Server, ServerFailed, free_port
from bench.gateway.quantile import quantile

LIMIT_S = 600.0


class Ran(msgspec.Struct):
    """A plan's figures, with the gateway's event loop."""

    played: Played
    gateway_lag_p99_ms: float


def run(plan: Plan, *, engine: Sequence[str] = ()) -> Ran:
    """Over the paced engine, with further options. Raises ServerFailed with the last words of what failed."""
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder:
        lengths = msgspec.json.encode(plan.workload.tokens).decode()
        port = free_port()
        paced = [sys.executable, "-m", "bench.async_loop.paced_engine", "--port", str(port), "--lengths", lengths]
        with Server("engine", Command([*paced, *engine]), port, Path(folder)) as serving:
            return over(serving.url, plan, Path(folder))


def over(engine_url: str, plan: Plan, folder: Path) -> Ran:
    """Over an engine that is there already."""
    key, lags, store = secrets.token_urlsafe(16), folder / "lags.json", f"sqlite:///{folder / 'trajectories.db'}"
    port = free_port()
    argv = [sys.executable, "-m", "bench.gateway.gateway_process", "--port", str(port), "--store", store]
    with Server("gateway", Command([*argv, "--lags", str(lags)], {"AGENTRL_ADMIN_KEY": key}), port, folder) as gateway:
        played = _drive(plan, engine_url, gateway, store, folder, key)
        gateway.check()
    return Ran(played, quantile(orjson.loads(lags.read_bytes()), 0.99))


def _drive(plan: Plan, engine_url: str, gateway: Server, store: str, folder: Path, key: str) -> Played:
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    argv = [sys.executable, "-m", "bench.async_loop.driver", str(folder / "plan.json"), "--store", store]
    argv += ["--engine-url", engine_url, "--gateway-url", gateway.url, "--gateway-pid", str(gateway.stats.pid)]
    done = subprocess.run(
        [*argv, "--folder", str(folder)],
        cwd=ROOT,
        env=os.environ | {"AGENTRL_ADMIN_KEY": key},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise ServerFailed(f"the driver of {plan} failed:\n{done.stderr[-3000:]}")
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Played)
