"""How one vLLM server is started: its command line, its environment, its socket. No process is started here."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentrl.engine.config import EngineConfig
from agentrl.engine.guard import KEY_VARIABLE, MIDDLEWARE
from agentrl.engine.parallel import workers_of_engine
from agentrl.errors import ConfigError
from agentrl.types import WeightTransfer

SUPPORTED_VLLM = "0.32"
BACKENDS: dict[WeightTransfer, str] = {
    "shared_memory": "agentrl_shm",
    "object_store": "agentrl_shm",
    "nccl": "agentrl_nccl",
    "ipc": "agentrl_ipc",
}
"""vLLM's name of the weight transfer, registered by `vllm_plugin`."""
WEIGHTS_DIR_VARIABLE = "AGENTRL_WEIGHTS_DIR"
ADAPTER_DIR_VARIABLE = "AGENTRL_ADAPTER_DIR"
ADAPTER = "adapter"
"""The name by which requests ask for the policy's adapter, where engines serve one."""
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
BINDING_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
FEW_CPUS = 2
"""With so few there is one to compute on, and nothing to choose or to bind."""
LOOPBACK = "127.0.0.1"
VLLM_SERVER = (sys.executable, "-m", "agentrl.engine.vllm_server")


def check_vllm() -> str:
    """The installed vLLM's version. Raises ConfigError, naming the supported one, when it is missing or another."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        if found.split("+")[0].split(".")[:2] != SUPPORTED_VLLM.split("."):
            raise ConfigError(
                f"{distribution} {found} is installed, agentrl works with {SUPPORTED_VLLM}.x, as its weight swap uses "
                f"internals of vLLM; install {distribution}=={SUPPORTED_VLLM}.0"
            )
        return found
    raise ConfigError("vLLM is not installed; install agentrl with its extra 'cpu' or 'gpu', or attach engines by URL")


def cpu_only() -> bool:
    """Whether the installed vLLM is the one for CPUs."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def listening_socket(port: int | None, host: str = LOOPBACK) -> socket.socket:
    """A bound socket, for a server to inherit: nobody can take the port between choosing and serving.

    Raises ConfigError naming `port` when something else has it. None chooses a free one.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a predecessor's closed connections linger
        sock.bind((host, port or 0))
        sock.listen(2048)  # on Linux, only listening makes a port with SO_REUSEADDR exclusive
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"port {port} is in use on {host} ({error.strerror}); stop what uses it, give another in engine.ports, "
            "or leave engine.ports out"
        ) from error
    return sock


def server_flags(
    model: str | Path,
    config: EngineConfig,
    port: int,
    *,
    adapter_rank: int = 0,
    adapter: Path | None = None,
    host: str = LOOPBACK,
    guarded: bool = False,
) -> list[str]:
    """vLLM's flags. Those that an invariant needs come last, so that nothing in `extra_args` overrides them.

    adapter: a directory with one of `adapter_rank` that is served from the start; see `empty_adapter`.
    guarded: whether nothing is answered without the key in its environment; see `guard`.
    """
    flags = ["--model", str(model), "--served-model-name", "policy"]
    flags += ["--dtype", config.dtype, "--max-num-seqs", str(config.max_num_seqs)]
    flags += ["--stream-interval", str(config.stream_interval), "--enable-prefix-caching"]
    if config.max_model_len is not None:
        flags += ["--max-model-len", str(config.max_model_len)]
    if config.kv_cache_gib is not None:
        flags += ["--kv-cache-memory-bytes", str(int(config.kv_cache_gib * 2**30))]
    if config.enforce_eager:
        flags += ["--enforce-eager"]
    if config.sleep_level is not None and not cpu_only():  # on CPUs vLLM refuses the flag, and sleeps without effect
        flags += ["--enable-sleep-mode"]
    if _one_process(config):
        flags += ["--distributed-executor-backend", "uni"]
    flags += ["--disable-uvicorn-access-log", *config.extra_args]
    flags += ["--host", host, "--port", str(port)]
    if guarded:
        flags += ["--middleware", MIDDLEWARE]
    flags += ["--enable-scale-out"]  # /inference/v1/generate answers 403 without it
    flags += ["--logprobs-mode", "processed_logprobs"]  # after temperature: what was sampled from (invariant 3)
    flags += ["--generation-config", "vllm"]  # not the model's generation_config.json
    flags += ["--weight-transfer-config", f'{{"backend": "{BACKENDS[config.weight_transfer]}"}}']
    if adapter is not None:
        room = next(rank for rank in ADAPTER_RANKS if rank >= adapter_rank)
        flags += ["--enable-lora", "--max-loras", "1", "--max-cpu-loras", "1", "--max-lora-rank", str(room)]
        flags += ["--lora-modules", f"{ADAPTER}={adapter}"]
    return flags


def server_environment(
    config: EngineConfig,
    weights_dir: Path,
    base: Mapping[str, str],
    *,
    adapter: Path | None = None,
    key: str | None = None,
) -> dict[str, str]:
    """The environment of a server: `base` and what makes vLLM swappable, offline and silent about itself.

    key: for a server that is `guarded`.
    """
    env = dict(base)
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)  # would override --kv-cache-memory-bytes
    env |= {
        "VLLM_SERVER_DEV_MODE": "1",  # the pause and weight-update calls do not exist without it
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_HOST_IP": LOOPBACK,
        "VLLM_LOGGING_COLOR": "0",
        WEIGHTS_DIR_VARIABLE: str(weights_dir.resolve()),
    }
    if env.get("VLLM_PLUGINS"):
        env["VLLM_PLUGINS"] += ",agentrl"
    if config.enforce_eager:
        env["TORCHDYNAMO_DISABLE"] = "1"  # else the first request waits for a C++ compiler, for one helper function
    if key is not None:
        env[KEY_VARIABLE] = key
    if adapter is not None:
        env[ADAPTER_DIR_VARIABLE] = str(adapter.resolve())
    threads = _threads(config)
    if threads is not None:
        env |= {"OMP_NUM_THREADS": str(threads), BINDING_VARIABLE: "nobind"}
    if _one_process(config):
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else vLLM turns `uni` into `mp` on CPUs
    return env


def _threads(config: EngineConfig) -> int | None:
    few = cpu_only() and len(os.sched_getaffinity(0)) <= FEW_CPUS
    return 1 if config.threads is None and few else config.threads


def _one_process(config: EngineConfig) -> bool:
    """Whether the engine core is its own worker. With two processes on a CPU each spins while it waits for the other,
    which takes more than the model does; vLLM needs them for binding threads to cores."""
    chosen = any(arg.startswith("--distributed-executor-backend") for arg in config.extra_args)
    return cpu_only() and _threads(config) is not None and workers_of_engine(config.extra_args) == 1 and not chosen


def tail(path: Path, *, lines: int = 12, most_bytes: int = 20_000) -> str:
    """The last lines of a log, for an error message; "" when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
