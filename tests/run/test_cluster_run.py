"""A run on three Ray nodes, each with its own network, processes and shared memory; one is switched off midway."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ROOT, Command
from living import eventually
from postgres_server import running

from agentrl.store.sql import SqlStore
from bench.chaos.place import OnNodes, title
from bench.chaos.ray_nodes import RayNodes, missing, ray_nodes

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 8
SETTINGS = {
    "name": '"cluster"',
    "loop.steps": str(STEPS),
    "loop.groups_per_step": "4",
    "evaluation.tasks": "8",
    "evaluation.at_start": "false",
    "evaluation.at_end": "false",
    "engine.replicas": "2",
    "engine.timeouts.startup_s": "500",
    "cluster.ray_address": '"auto"',
    "cluster.engines": '"strict_spread"',
    "cluster.engine_resources": "{engine = 1}",
    "cluster.rank_resources": "{trainer = 1}",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """The head trains; the two others have room for one engine each."""
    if why := missing():
        pytest.skip(f"several Ray nodes need network namespaces: {why}")
    folder = tmp_path_factory.mktemp("nodes")
    with ray_nodes(folder, 2, 1, 1, resources=OnNodes.resources) as nodes:
        yield nodes


def agentrl(cluster: RayNodes, cwd: Path, *arguments: str) -> Command:
    """The command on the head node."""
    return Command(*arguments, cwd=cwd, on=cluster.command(cluster.nodes[0], cwd=cwd), **cluster.environment)


def left_on(cluster: RayNodes) -> list[str]:
    """Processes of a run on any node: Ray's own stay."""
    return [title(process) for process in OnNodes(cluster, ROOT).left("")]


def statuses_without_a_key(cluster: RayNodes, cwd: Path) -> list[int]:
    """What the first engine answers on the network."""
    log = (cwd / "runs" / "cluster" / "logs" / "engine-0.log").read_text()
    found = re.search(r"http://(10[.\d]+:\d+)", log)
    assert found is not None, log
    script = (
        "import httpx, sys\n"
        "for method, path in (('GET', '/health'), ('POST', '/pause'), ('GET', '/metrics')):\n"
        "    print(httpx.request(method, f'http://{sys.argv[1]}{path}').status_code)"
    )
    asked = cluster.command(cluster.nodes[0], sys.executable, "-c", script, found[1], cwd=cwd)
    return [int(line) for line in subprocess.check_output(asked, text=True).split()]


def test_a_run_outlives_a_node_of_its_cluster(cluster: RayNodes, tmp_path: Path):
    """Two engines on two nodes, weights over the object store, PostgreSQL; the second engine's node loses its power."""
    with running() as server:
        url = server.database()
        settings = [f"--set={key}={value}" for key, value in SETTINGS.items()]
        example = str(ROOT / "examples/01_calculator/run.toml")
        command = agentrl(cluster, tmp_path, "train", example, *settings, f"--set=store_url={json.dumps(url)}")
        command.read_until(f"2/{STEPS}")
        assert statuses_without_a_key(cluster, tmp_path) == [401, 401, 401]
        cluster.kill(cluster.nodes[2])
        assert command.wait(timeout=600) == 0, command.output

        run = tmp_path / "runs" / "cluster"
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["ended"], summary["steps"]) == ("done", STEPS)
        store = SqlStore(url)
        booted = {swap.engine_id for swap in store.swaps() if swap.mode == "boot"}
        last = {swap.engine_id for swap in store.swaps() if swap.version == STEPS}
        store.close()
        assert booted == {"engine-0", "engine-1"}
        assert len(last) == 1, "one engine is left, and has the last version"
        audit = subprocess.run(
            [sys.executable, "-m", "agentrl.cli.main", "audit", str(run)],
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        assert audit.returncode == 0, audit.stdout + audit.stderr
        assert "clean" in audit.stdout
        assert eventually(lambda: not left_on(cluster)), left_on(cluster)


def test_what_a_cluster_lacks_ends_the_command_with_what_is_free(cluster: RayNodes, tmp_path: Path):
    """Case 80."""
    example = str(ROOT / "examples/01_calculator/run.toml")
    asked = ["--set=cluster.ray_address=auto", "--set=cluster.engine_resources={engine = 2}"]
    command = agentrl(cluster, tmp_path, "train", example, *asked)
    assert command.wait(timeout=120) == 1, command.output
    assert "no node has 1 CPU, 2 engine free, which engines need on one node" in command.output
    assert cluster.nodes[1].address in command.output
