"""What of a run cannot be on a cluster, and what it then means where it says nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from agentrl.cluster.joined import check_cluster, file_system
from agentrl.cluster.nodes import interface_of
from agentrl.cluster.ray_session import _want_a_token, _worker_environment
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, RunError


def run_of(**tables: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "r", "environment": {"id": "agentrl/Calculator-v0"}, **tables})


def on_cluster(**tables: Any) -> RunConfig:
    return run_of(cluster={"ray_address": "auto"}, **tables)


@pytest.fixture
def nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint="/shared", fstype="nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)


def test_on_one_machine_weights_go_through_shared_memory_and_on_a_cluster_through_the_object_store():
    assert run_of().engine.weight_transfer == "shared_memory"
    assert on_cluster().engine.weight_transfer == "object_store"
    assert on_cluster(engine={"weight_transfer": "nccl"}).engine.weight_transfer == "nccl"


def test_a_resolved_configuration_reads_back_as_it_is():
    config = on_cluster()
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("transfer", ["shared_memory", "ipc"])
def test_a_transfer_within_one_machine_is_refused_on_a_cluster(transfer: str):
    with pytest.raises(ConfigError, match=r"stays within one machine.*object_store"):
        check_cluster(on_cluster(engine={"weight_transfer": transfer}))


@pytest.mark.usefixtures("nfs")
def test_an_sqlite_store_on_a_network_file_system_is_refused():
    with pytest.raises(ConfigError, match=r"/shared/runs/r/trajectories.db would be an SQLite file on nfs4"):
        check_cluster(on_cluster(runs_dir="/shared/runs"))


@pytest.mark.usefixtures("nfs")
@pytest.mark.parametrize("url", ["postgresql://db/agentrl", "sqlite:////tmp/r.db"])
def test_a_database_server_or_a_disk_of_the_drivers_own_is_not(url: str):
    check_cluster(on_cluster(runs_dir="/shared/runs", store_url=url))


@pytest.mark.usefixtures("nfs")
def test_the_file_system_of_a_path_is_that_of_its_nearest_mount():
    assert [file_system(Path(path)) for path in ("/shared/a/b", "/sharedness", "/")] == ["nfs4", "ext4", "ext4"]


def test_engine_ports_are_tried_on_this_machine_only_where_engines_will_be_here():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="in use"):
            check_cluster(run_of(engine={"ports": [port]}))
        check_cluster(on_cluster(engine={"ports": [port]}, store_url="sqlite:////tmp/r.db"))


def test_a_driver_hands_on_no_key_of_its_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    assert "secret" not in str(_worker_environment(on_cluster().cluster))


def test_ray_that_a_run_starts_wants_a_token_of_its_own_unless_the_user_has_said_what_it_wants(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/mine")
    _want_a_token()
    assert "RAY_AUTH_TOKEN" not in os.environ
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    _want_a_token()
    first = os.environ["RAY_AUTH_TOKEN"]
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    _want_a_token()
    assert len(first) == 64
    assert os.environ["RAY_AUTH_TOKEN"] != first


def test_an_interface_is_found_by_its_address():
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(RunError, match=r"no network interface of this node has 203\.0\.113\.9"):
        interface_of("203.0.113.9")
