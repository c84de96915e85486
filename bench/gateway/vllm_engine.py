"""The measurements that need a real engine: one vLLM server as agentrl starts it, and the gateway in front of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.config import EngineConfig
from agentrl.engine.replica import EngineReplica
from bench.gateway.prefix_cache import measure_prefix
from bench.gateway.processes import ROOT, Server, free_port
from bench.gateway.results import Results
from bench.gateway.rounds import BenchmarkFailed
from bench.gateway.subjects.agentrl import Agentrl
from bench.gateway.vllm_client import Window

SEQUENCES = 64
WARM_UP_S, SECONDS, GRACE_S = 3.0, 12.0, 120.0
EPISODES_A_ROUND = 1_000_000
WAYS = ("direct", "gateway")


def measure_vllm(results: Results, folder: Path, say: Callable[[str], None], *, rounds: int) -> None:
    """Fills in `vllm`, `vllm_tokens_ratio`, `prefix` and `prefix_hit_ratio`."""
    weights = Path(tempfile.mkdtemp(prefix="agentrl-bench-", dir="/dev/shm"))
    config = EngineConfig(max_num_seqs=SEQUENCES)
    replica = EngineReplica(resolve_model(EMBEDDED), config, logs_dir=folder, weights_dir=weights)
    try:
        engine_url = replica.start(say)
        port = free_port()
        command = Agentrl(workers=1).server(engine_url, port, folder / "vllm")
        (folder / "vllm").mkdir()
        assert command is not None
        with Server("gateway-of-vllm", command, port, folder) as gateway:
            urls = {"direct": engine_url, "gateway": gateway.url}
            found: dict[str, list[Window]] = {way: [] for way in WAYS}
            for way in WAYS:  # an engine's first batch is slow
                say(f"vLLM, warming up: {way}")
                _window(way, urls[way], first_episode=EPISODES_A_ROUND * (rounds + 1), seconds=2.0)
            cpu_s = gateway.cpu_seconds()
            for index in range(rounds):
                for way in WAYS if index % 2 == 0 else WAYS[::-1]:
                    say(f"vLLM, round {index + 1} of {rounds}: {way}")
                    found[way].append(_window(way, urls[way], first_episode=EPISODES_A_ROUND * index, seconds=SECONDS))
            cpu_s = gateway.cpu_seconds() - cpu_s
            say("vLLM: prefix cache")
            results.prefix = measure_prefix(gateway.url, engine_url)
    finally:
        replica.stop()
        shutil.rmtree(weights, ignore_errors=True)
    direct, through = (median(window.tokens_per_s for window in found[way]) for way in WAYS)
    results.vllm_tokens_ratio = round(through / direct, 4)
    results.prefix_hit_ratio = round(results.prefix["hits"] / results.prefix["possible"], 4)
    results.vllm = {
        "sequences": SEQUENCES,
        "tokens_per_s_direct": round(direct, 1),
        "tokens_per_s_gateway": round(through, 1),
        "rounds_direct": [round(window.tokens_per_s, 1) for window in found["direct"]],
        "rounds_gateway": [round(window.tokens_per_s, 1) for window in found["gateway"]],
        "tokens_a_request": round(median(window.tokens_a_request for way in WAYS for window in found[way]), 1),
        "gateway_cpu_share": round(cpu_s / (rounds * (SECONDS + WARM_UP_S)), 4),  # of one core, while it serves
    }


def _window(way: str, url: str, *, first_episode: int, seconds: float) -> Window:
    argv = [sys.executable, "-m", "bench.gateway.vllm_client", "--way", way, "--url", url, "--slots", str(SEQUENCES)]
    argv += ["--first-episode", str(first_episode), "--seconds", str(seconds), "--warm-up", str(WARM_UP_S)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=seconds + GRACE_S, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing was said"]
        raise BenchmarkFailed(f"the clients of vLLM ({way}) failed: {said[-1]}")
    return msgspec.json.decode(done.stdout, type=Window)
