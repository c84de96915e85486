"""The same over the real stack: `agentrl train` with the embedded policy, vLLM on CPU and the DeepSpeed trainer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.config import EngineConfig
from agentrl.engine.replica import EngineReplica
from agentrl.rundir import RunDirectory
from agentrl.store.sql import SqlStore
from bench.async_loop import scripted
from bench.async_loop.arithmetic import Played
from bench.async_loop.window import played
from bench.async_loop.workload import LogNormal, Plan, Workload
from bench.gateway.processes import ROOT, ServerFailed

LIMIT_S = 600
SEQUENCES = 64
WORKLOAD = Workload(tool_s=LogNormal(0.6, 1.0, 8.0))  # how long answers are, the policy decides


def plan_of(steps: int, warm_steps: int) -> Plan:
    return Plan(
        max_lag=None, steps=steps, warm_steps=warm_steps, group_size=8, concurrency=64, workload=WORKLOAD, max_tokens=64
    )


RUN = """
name = "{name}"
model = "agentrl:tiny"
mode = "{mode}"

[environment]
id = "bench.async_loop.environment:SlowTool"
options = {{ workload = {{ {workload} }} }}

[loop]
steps = {steps}
groups_per_step = {groups_per_step}

[rollout]
group_size = {group_size}
concurrency = {concurrency}
max_tokens = {max_tokens}

[engine]
threads = 1
max_num_seqs = {sequences}
swap_mode = "{swap_mode}"

[trainer]
threads = 1
learning_rate = 1e-7  # so that the policy stays what it is, and the work the same

[evaluation]
tasks = 0

[checkpoint]
every = 1000
trainer_state = false

[tensorboard]
enabled = false
"""


def alone(plan: Plan) -> Played:
    """The rollouts without a trainer, over a vLLM that is started as a run starts it."""
    weights = Path(tempfile.mkdtemp(prefix="agentrl-bench-", dir="/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as name:
        config = EngineConfig(threads=1, max_num_seqs=SEQUENCES)
        replica = EngineReplica(resolve_model(EMBEDDED), config, logs_dir=Path(name), weights_dir=weights)
        try:
            return scripted.over(replica.start(), plan, Path(name)).played
        finally:
            replica.stop()
            shutil.rmtree(weights, ignore_errors=True)


def train(mode: str, plan: Plan) -> Played:
    """One run. Raises ServerFailed with its last words when it does not end well."""
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as name:
        folder = Path(name)
        (folder / "run.toml").write_text(_run_file(mode, plan))
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-m", "agentrl.cli.main", "train", "run.toml"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"the run in mode {mode!r} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        return _played(RunDirectory(folder / "runs" / mode), plan)


def _run_file(mode: str, plan: Plan) -> str:
    of = msgspec.to_builtins(plan.workload)
    workload = ", ".join(
        f"{name} = {{ {', '.join(f'{key} = {value}' for key, value in drawn.items())} }}" for name, drawn in of.items()
    )
    return RUN.format(
        name=mode,
        mode=mode,
        workload=workload,
        steps=plan.steps,
        groups_per_step=plan.groups_per_step,
        group_size=plan.group_size,
        concurrency=plan.concurrency,
        max_tokens=plan.max_tokens,
        sequences=SEQUENCES,
        swap_mode=plan.swap_mode,
    )


def _played(run: RunDirectory, plan: Plan) -> Played:
    """From the moment that the last warm version was served to that of the last one."""
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step" and line["step"] > plan.warm_steps]
    store = SqlStore(run.store_url)
    try:
        served = {swap.version: swap.finished_at for swap in store.swaps()}
        return played(
            served[plan.warm_steps],
            served[plan.steps],
            groups=len(steps) * plan.groups_per_step,
            steps=steps,
            trajectories=store.iterate(mode="train"),
        )
    finally:
        store.close()


def measure(modes: dict[str, int], plan: Plan, say: Callable[[str], None]) -> dict[str, Played]:
    say("vLLM: rollouts alone")
    found = {"rollouts alone": alone(plan)}
    for mode in modes:
        say(f"vLLM: {mode}")
        found[mode] = train(mode, plan)
    return found
