"""All gateways against one mock engine: rounds interleaved (A B C D, A B C D, …), medians over them."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from bench.gateway.awake import cores_awake
from bench.gateway.client import Round
from bench.gateway.processes import ROOT, Command, Server, free_port
from bench.gateway.results import ByName, Results
from bench.gateway.subjects import SUBJECTS
from bench.gateway.subjects.base import Subject
from bench.gateway.workload import Sizes

LOADS = (1, 32)
"""Concurrent clients."""
EPISODES_A_ROUND = 1_000_000
GRACE_S = 120.0


class Plan(Struct, frozen=True, kw_only=True):
    names: Sequence[str]
    sizes: Sizes = Sizes()
    rounds: int = 5
    seconds: float = 4.0
    warm_up_s: float = 1.0
    stream_interval: int = 8


class BenchmarkFailed(Exception):
    """A client or a server failed, so that there is no number."""


def measure(plan: Plan, folder: Path, say: Callable[[str], None]) -> Results:
    """Starts the engine and every gateway, each in its own process, and runs the rounds."""
    found: dict[str, dict[int, list[Round]]] = defaultdict(lambda: defaultdict(list))
    cpu_ms: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        engine = stack.enter_context(_engine(plan, folder))
        servers: dict[str, Server] = {}
        for name in plan.names:
            port = free_port()
            command = SUBJECTS[name].server(engine.url, port, folder)
            servers[name] = stack.enter_context(Server(name, command, port, folder)) if command else engine
        for index in range(plan.rounds):
            for clients in LOADS:
                for name in plan.names:
                    server = servers[name]
                    server.wait_until_idle()
                    say(f"round {index + 1} of {plan.rounds}, {clients} clients: {SUBJECTS[name].title}")
                    before = server.cpu_seconds()
                    audit = clients == max(LOADS) and name != "none"
                    with cores_awake() if clients == min(LOADS) else nullcontext():
                        result = _round(plan, SUBJECTS[name], server, clients, index, audit=audit)
                    if clients == max(LOADS):
                        served = result.requests * (plan.seconds + plan.warm_up_s) / plan.seconds
                        cpu_ms[name].append((server.cpu_seconds() - before) / served * 1000)
                    found[name][clients].append(result)
        rss = {name: server.rss_bytes() / 2**20 for name, server in servers.items() if name != "none"}
    return _summary(plan, found, {n: median(values) for n, values in cpu_ms.items()}, rss)


def _engine(plan: Plan, folder: Path) -> Server:
    port, sizes = free_port(), plan.sizes
    argv = [sys.executable, "-m", "bench.gateway.mock_engine", "--port", str(port)]
    return Server(
        "engine", Command([*argv, *_flags(sizes), "--stream-interval", str(plan.stream_interval)]), port, folder
    )


def _flags(sizes: Sizes) -> list[str]:
    flags = ["--prompt-tokens", str(sizes.prompt_tokens), "--answer-tokens", str(sizes.answer_tokens)]
    return [*flags, "--turns", str(sizes.turns)]


def _round(plan: Plan, subject: Subject, server: Server, clients: int, index: int, *, audit: bool) -> Round:
    argv = [sys.executable, "-m", "bench.gateway.client", "--subject", subject.name, "--url", server.url]
    argv += ["--clients", str(clients), "--seconds", str(plan.seconds), "--warm-up", str(plan.warm_up_s)]
    argv += ["--first-episode", str((index * 2 + LOADS.index(clients)) * EPISODES_A_ROUND), *_flags(plan.sizes)]
    if audit:
        argv.append("--audit")
    limit_s = plan.seconds + plan.warm_up_s + GRACE_S
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=limit_s, check=False)
    if done.returncode:
        server.check()
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing was said"]
        raise BenchmarkFailed(f"the clients of {subject.title} failed: {said[-1]}")
    return msgspec.json.decode(done.stdout, type=Round)


def _summary(plan: Plan, found: dict[str, dict[int, list[Round]]], cpu_ms: ByName, rss: ByName) -> Results:
    def each(clients: int, value: Callable[[Round], float]) -> ByName:
        return {name: round(median(map(value, rounds[clients])), 4) for name, rounds in found.items()}

    def rate(one: Round) -> float:
        return one.requests / one.seconds

    prompts = {
        name: mean
        for name, rounds in found.items()
        if (mean := next((one.prompt_tokens for one in rounds[max(LOADS)] if one.prompt_tokens), None)) is not None
    }
    return Results(
        requests_per_s_32=each(32, rate),
        requests_per_s_1=each(1, rate),
        p50_ms_1=each(1, lambda one: one.p50_ms),
        p99_ms_1=each(1, lambda one: one.p99_ms),
        p50_ms_32=each(32, lambda one: one.p50_ms),
        p99_ms_32=each(32, lambda one: one.p99_ms),
        cpu_ms_per_request_32={name: round(value, 4) for name, value in cpu_ms.items() if name != "none"},
        rss_mib={name: round(value, 1) for name, value in rss.items()},
        prompt_tokens=prompts,
        sizes=msgspec.to_builtins(plan.sizes),
        rounds=plan.rounds,
        seconds=plan.seconds,
    )
