"""The SLURM script, run by bash. Programs in place of SLURM's, Ray's and PostgreSQL's write down their calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.config import load_run_config

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "slurm" / "agentrl.sbatch"
EXAMPLE = ROOT / "examples" / "01_calculator" / "run.toml"

# Each writes its name and arguments as a line; `srun` runs its command as if it were on that node.
STUBS = {
    "scontrol": 'if [[ $1 == show ]]; then printf "n%s\\n" $(seq 0 $((SLURM_JOB_NUM_NODES - 1))); fi',
    "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
    "ray": "exec sleep 60",
    "python": "echo ${JOINED:-$SLURM_JOB_NUM_NODES}",
    "hostname": "echo 10.0.0.1 fe80::1",
    "initdb": 'mkdir -p "$2"; touch "$2/PG_VERSION"',
    "pg_ctl": "",
    "psql": "",
    "createdb": "",
    "agentrl": "exit ${AGENTRL_STATUS:-0}",
}


@dataclass
class Job:
    status: int
    output: str
    calls: list[str]

    def of(self, program: str) -> list[str]:
        return [call.removeprefix(program + " ") for call in self.calls if call.startswith(program + " ")]


@pytest.fixture
def sbatch(tmp_path: Path):
    stubs, calls = tmp_path / "bin", tmp_path / "calls"
    stubs.mkdir()
    for name, body in STUBS.items():
        (stubs / name).write_text(f'#!/bin/bash\necho "{name} $*" >> {calls}\n{body}\n')
        (stubs / name).chmod(0o755)
    name = f"slurm-test-{os.getpid()}"

    def run(**variables: str) -> Job:
        calls.write_text("")
        defaults = {
            "RUN_FILE": str(EXAMPLE),
            "RUNS_DIR": str(tmp_path / "runs"),
            "RUN_NAME": name,
            "SLURM_SUBMIT_DIR": str(ROOT),
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NODELIST": "n[0-2]",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_GPUS_ON_NODE": "8",
            "PATH": f"{stubs}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", str(SCRIPT)], env=defaults | variables, capture_output=True, text=True, timeout=60
        )
        return Job(done.returncode, done.stdout + done.stderr, calls.read_text().splitlines())

    yield run
    shutil.rmtree(f"/tmp/agentrl-{name}", ignore_errors=True)
    shutil.rmtree("/tmp/agentrl-77", ignore_errors=True)


def settings(call: str) -> list[str]:
    """The overrides of an `agentrl train` call."""
    return [part.strip() for part in call.split("--set ")[1:]]


def test_the_script_is_bash():
    for script in (SCRIPT, ROOT / "deploy" / "run-or-resume.sh"):
        assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
        assert os.access(script, os.X_OK)


def test_the_first_node_is_the_head_and_trains_and_the_others_join_it_and_sample(sbatch):
    job = sbatch()
    assert job.status == 0, job.output
    started = sorted(job.of("ray"))
    assert len(started) == 3
    head = [call for call in started if call.startswith("start --head")]
    others = [call for call in started if call.startswith("start --address=10.0.0.1:20077")]
    assert len(head) == 1
    assert "--port=20077" in head[0]
    assert '--resources={"trainer": 1000}' in head[0]
    assert len(others) == 2
    assert all('--resources={"engine": 1000}' in call for call in others)
    assert all("--num-gpus=8" in call and "--node-ip-address=10.0.0.1" in call for call in started)


def test_the_run_gets_as_many_engines_and_ranks_as_the_job_has_gpus(sbatch):
    job = sbatch(TENSOR_PARALLEL="4", SLURM_JOB_NUM_NODES="4")
    (call,) = job.of("agentrl")
    config = load_run_config(EXAMPLE, settings(call))
    assert (config.engine.replicas, config.engine.extra_args) == (6, ("--tensor-parallel-size", "4"))
    assert config.trainer.ranks == 8  # type: ignore[attr-defined]
    assert config.cluster.ray_address == "auto"
    assert (config.cluster.engine_resources, config.cluster.rank_resources) == ({"engine": 1}, {"trainer": 1})
    assert config.engine.weight_transfer == "object_store"


def test_postgresql_of_the_jobs_own_keeps_the_store_and_is_stopped(sbatch):
    job = sbatch()
    (call,) = job.of("agentrl")
    config = load_run_config(EXAMPLE, settings(call))
    assert config.store_url is not None
    assert config.store_url.startswith("postgresql://agentrl@/agentrl?host=/tmp/")
    assert [call.split()[-1] for call in job.of("pg_ctl")] == ["start", "stop"]
    assert "listen_addresses=" in job.of("pg_ctl")[0]


def test_a_database_that_is_there_is_used(sbatch):
    job = sbatch(STORE_URL="postgresql://db/agentrl")
    assert job.of("pg_ctl") == []
    assert "store_url=postgresql://db/agentrl" in settings(job.of("agentrl")[0])


def test_a_run_that_was_begun_goes_on_and_one_that_is_done_is_left_alone(sbatch, tmp_path: Path):
    job = sbatch(STORE_URL="postgresql://db/agentrl")
    name = next(value for value in settings(job.of("agentrl")[0]) if value.startswith("name=")).removeprefix("name=")
    run = tmp_path / "runs" / name
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    assert sbatch(STORE_URL="postgresql://db/agentrl").of("agentrl") == [f"train --resume {run}"]
    (run / "summary.json").write_text('{"ended": "interrupted"}')
    assert sbatch(STORE_URL="postgresql://db/agentrl").of("agentrl") == [f"train --resume {run}"]
    (run / "summary.json").write_text('{\n  "ended": "done"\n}')
    assert sbatch(STORE_URL="postgresql://db/agentrl").of("agentrl") == []


@pytest.mark.parametrize(
    ("status", "restarts", "asked"),
    [("0", "0", False), ("1", "0", True), ("1", "20", False), ("2", "0", False), ("130", "3", True)],
)
def test_a_driver_that_did_not_end_well_has_the_job_queued_again_some_times(
    sbatch, status: str, restarts: str, asked: bool
):
    """2 is a mistake in the configuration, which no other try mends."""
    job = sbatch(AGENTRL_STATUS=status, SLURM_RESTART_COUNT=restarts, STORE_URL="postgresql://db/agentrl")
    assert job.status == int(status)
    assert (job.of("scontrol")[1:] == ["requeue 77"]) is asked


def test_nodes_that_do_not_join_in_time_end_the_job(sbatch):
    job = sbatch(JOINED="2", START_S="-1")
    assert (job.status, job.of("agentrl")) == (1, [])
    assert "2 of 3 nodes joined" in job.output


def test_a_job_without_a_node_for_engines_is_refused(sbatch):
    job = sbatch(TRAINER_NODES="3")
    assert (job.status, job.of("srun")) == (2, [])
    assert "leave none for engines" in job.output


def test_the_token_is_in_no_command_line(sbatch):
    assert "RAY_AUTH_TOKEN" not in "".join(sbatch().calls)
