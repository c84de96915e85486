"""How a vLLM server is started: its flags, its environment, its port."""

from __future__ import annotations

import importlib.metadata
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine import launch, vllm_plugin
from agentrl.engine.config import EngineConfig
from agentrl.engine.empty_adapter import write_empty_adapter
from agentrl.engine.launch import (
    BACKENDS,
    check_vllm,
    listening_socket,
    server_environment,
    server_flags,
    tail,
)
from agentrl.errors import ConfigError


def value_of(flags: list[str], flag: str) -> str:
    """The value that argparse takes: the last one."""
    return flags[len(flags) - 1 - flags[::-1].index(flag) + 1]


def test_flags_keep_the_invariants_whatever_the_configuration() -> None:
    flags = server_flags("model", EngineConfig(extra_args=("--seed", "3")), 8123)
    assert value_of(flags, "--logprobs-mode") == "processed_logprobs"
    assert value_of(flags, "--generation-config") == "vllm"
    assert json.loads(value_of(flags, "--weight-transfer-config")) == {"backend": "agentrl_shm"}
    assert "--enable-scale-out" in flags
    assert (value_of(flags, "--host"), value_of(flags, "--port")) == ("127.0.0.1", "8123")
    assert value_of(flags, "--seed") == "3"


def test_flags_follow_the_configuration() -> None:
    config = EngineConfig(max_model_len=512, max_num_seqs=7, stream_interval=3, kv_cache_gib=0.5, enforce_eager=False)
    flags = server_flags("model", config, 1)
    assert value_of(flags, "--model") == "model"
    assert value_of(flags, "--max-model-len") == "512"
    assert value_of(flags, "--max-num-seqs") == "7"
    assert value_of(flags, "--stream-interval") == "3"
    assert value_of(flags, "--kv-cache-memory-bytes") == str(2**29)
    assert value_of(flags, "--dtype") == "float32"
    assert "--enforce-eager" not in flags


def test_what_is_left_out_is_left_to_vllm() -> None:
    flags = server_flags("model", EngineConfig(kv_cache_gib=None), 1)
    assert "--max-model-len" not in flags
    assert "--kv-cache-memory-bytes" not in flags


@pytest.mark.parametrize(
    ("transfer", "backend"),
    [("object_store", "agentrl_shm"), ("nccl", "agentrl_nccl"), ("ipc", "agentrl_ipc")],
)
def test_each_weight_transfer_has_a_backend_that_the_plugin_registers(transfer: str, backend: str) -> None:
    flags = server_flags("model", EngineConfig.model_validate({"weight_transfer": transfer}), 1)
    assert json.loads(value_of(flags, "--weight-transfer-config")) == {"backend": backend}
    assert set(BACKENDS.values()) == set(vllm_plugin.ENGINES)


def test_a_server_for_adapters_starts_with_one_that_changes_nothing(tmp_path: Path) -> None:
    """Rank 9 needs room for 16: vLLM makes room for 8, 16, 32, … It takes no adapter that is on no layer."""
    model = resolve_model(EMBEDDED)
    adapter = write_empty_adapter(tmp_path / "engine-0-adapter", model)
    flags = server_flags("model", EngineConfig(), 1, adapter_rank=9, adapter=adapter)
    assert "--enable-lora" in flags
    assert value_of(flags, "--max-lora-rank") == "16"
    assert value_of(flags, "--lora-modules") == f"adapter={adapter}"
    tensors = load_file(adapter / "adapter_model.safetensors")
    module = "base_model.model.model.layers.0.self_attn.k_proj"
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        f"{module}.lora_A.weight": (1, 128),
        f"{module}.lora_B.weight": (64, 1),
    }
    assert not any(tensor.any() for tensor in tensors.values())
    assert json.loads((adapter / "adapter_config.json").read_text())["target_modules"] == ["k_proj"]
    env = server_environment(EngineConfig(), tmp_path, {}, adapter=adapter)
    assert env["AGENTRL_ADAPTER_DIR"] == str(adapter)  # where a swap puts the next one
    assert "--enable-lora" not in server_flags("model", EngineConfig(), 1)


@pytest.mark.parametrize("arg", ["--port", "--enable-lora", "--logprobs-mode=raw_logprobs", "--generation_config"])
def test_flags_that_agentrl_sets_cannot_be_given(arg: str) -> None:
    with pytest.raises(ValidationError, match="is set by agentrl"):
        EngineConfig(extra_args=(arg, "x"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"replicas": 0}, "greater than 0"),
        ({"swap_mode": "abort"}, "'keep', 'recompute' or 'drain'"),
        ({"urls": ["localhost:8000"]}, "write it as http://HOST:PORT"),
        ({"urls": ["http://a:1", "http://a:1/"]}, "there twice"),
        ({"ports": [0]}, "0 is not a port"),
        ({"ports": [8000], "replicas": 2}, "1 ports for 2 replicas"),
        ({"ports": [8000, 8000], "replicas": 2}, "a port is there twice"),
        ({"timeouts": {"stall_s": 0}}, "greater than 0"),
        ({"max_seqs": 3}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_configuration_says_what_is_wrong(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineConfig.model_validate(fields)


def test_every_field_of_the_configuration_is_explained() -> None:
    text = Path(launch.__file__).with_name("config.py").read_text()
    for name in EngineConfig.model_fields:
        assert f"    {name}: " in text
    assert text.count('    """') >= len(EngineConfig.model_fields)


def test_the_environment_makes_vllm_swappable_offline_and_silent(tmp_path: Path) -> None:
    base = {"PATH": "/bin", "VLLM_CPU_KVCACHE_SPACE": "40", "VLLM_PLUGINS": "mine"}
    env = server_environment(EngineConfig(threads=2), tmp_path, base)
    assert env["PATH"] == "/bin"
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert env["VLLM_NO_USAGE_STATS"] == "1"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["AGENTRL_WEIGHTS_DIR"] == str(tmp_path)
    assert env["VLLM_PLUGINS"] == "mine,agentrl"
    assert env["OMP_NUM_THREADS"] == "2"
    assert "VLLM_CPU_KVCACHE_SPACE" not in env
    assert base["VLLM_PLUGINS"] == "mine"


@pytest.mark.parametrize(
    ("cpus", "threads", "seen"), [(2, None, "1"), (1, None, "1"), (3, None, None), (3, 2, "2"), (2, 2, "2")]
)
def test_an_engine_on_few_cores_has_one_thread_that_is_bound_to_none(
    cpus: int, threads: int | None, seen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cpus)))
    env = server_environment(EngineConfig(threads=threads), tmp_path, {})
    assert env.get("OMP_NUM_THREADS") == seen
    assert env.get("VLLM_CPU_OMP_THREADS_BIND") == (seen and "nobind")


@pytest.mark.parametrize(
    ("fields", "one"),
    [
        ({"threads": 2}, True),
        ({}, False),
        ({"threads": 2, "extra_args": ("--tensor-parallel-size", "2")}, False),
        ({"threads": 2, "extra_args": ("--distributed-executor-backend=mp",)}, False),
    ],
)
def test_an_engine_whose_threads_are_not_bound_computes_where_it_schedules(
    fields: dict[str, Any], one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes spin while they wait for each other."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    config = EngineConfig(**fields)
    assert ("uni" in server_flags("model", config, 8123)) == one
    assert (server_environment(config, tmp_path, {}).get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0") == one


def test_a_port_that_is_in_use_is_named() -> None:
    """Case 79."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use.*give another in engine.ports"):
            listening_socket(port)


def test_a_port_that_an_engine_is_about_to_serve_is_in_use() -> None:
    """Case 79: between choosing the port and vLLM's first answer lie many seconds; nobody gets in."""
    with listening_socket(None) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            listening_socket(port)


def test_free_ports_are_all_different() -> None:
    sockets = [listening_socket(None) for _ in range(50)]
    assert len({sock.getsockname()[1] for sock in sockets}) == 50
    for sock in sockets:
        sock.close()


def test_a_port_whose_last_connections_linger_can_be_taken_again() -> None:
    with listening_socket(None) as first:
        address = first.getsockname()
        with socket.create_connection(address) as client:
            server_side, _ = first.accept()
            server_side.close()  # the side that closes first keeps TIME_WAIT
            assert client.recv(1) == b""
    with listening_socket(address[1]) as second:
        assert second.getsockname() == address


@pytest.mark.parametrize(("found", "supported"), [("0.32.0", True), ("0.32.1+cpu", True), ("0.33.0", False)])
def test_only_the_supported_vllm_is_started(found: str, supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "version", lambda distribution: found)
    if supported:
        assert check_vllm() == found
    else:
        with pytest.raises(ConfigError, match=r"0\.33\.0 is installed, agentrl works with 0\.32\.x"):
            check_vllm()


def test_no_vllm_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(distribution: str) -> str:
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(launch, "version", missing)
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        check_vllm()


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert tail(log) == ""
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    assert tail(log, lines=2) == "line 98\nline 99"
