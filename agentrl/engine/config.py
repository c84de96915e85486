"""The `[engine]` section of a run: how many engines, what each may use, and how long anything may take."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from agentrl.section import Section
from agentrl.types import SwapMode, WeightTransfer

MANAGED_FLAGS = frozenset(
    {
        "--model",
        "--host",
        "--port",
        "--dtype",
        "--max-model-len",
        "--max-num-seqs",
        "--stream-interval",
        "--logprobs-mode",
        "--generation-config",
        "--weight-transfer-config",
        "--enable-lora",
        "--lora-modules",
        "--max-loras",
        "--max-cpu-loras",
        "--max-lora-rank",
        "--enable-scale-out",
        "--enable-sleep-mode",
        "--api-key",
        "--root-path",
        "--uds",
    }
)
"""Server flags that agentrl sets itself; an invariant or the address depends on them."""


class EngineTimeouts(Section):
    """How long to wait for an engine, in seconds. Every wait has one."""

    startup_s: PositiveFloat = 300.0
    """From starting the process to its first good health check."""

    stop_s: PositiveFloat = 10.0
    """From SIGTERM to SIGKILL."""

    connect_s: PositiveFloat = 5.0
    """To open a connection."""

    probe_s: PositiveFloat = 5.0
    """For a health check and other questions that an idle engine answers at once."""

    first_token_s: PositiveFloat = 600.0
    """From sending a request to its first token: queueing and a swap in `drain` mode included."""

    stall_s: PositiveFloat = 180.0
    """Between two pieces of one generation, a weight swap in between included."""

    drain_s: PositiveFloat = 900.0
    """For the requests in flight to finish before a swap in `drain` mode, or before an engine sleeps."""

    swap_s: PositiveFloat = 60.0
    """For each other call of a weight swap. All engines stay paused while one of them hangs in it."""


class EngineConfig(Section):
    """The engines of a run: started here (`replicas`), or already running (`urls`)."""

    replicas: PositiveInt = 1
    """vLLM servers to start. Not used when `urls` is given."""

    urls: tuple[str, ...] = ()
    """Engines that already run, to attach to instead of starting any: `["http://127.0.0.1:8000"]`."""

    ports: tuple[int, ...] = ()
    """One fixed port for each replica; empty lets the system choose free ones."""

    weight_transfer: WeightTransfer = "shared_memory"
    """How new weights reach the engines: files in `shared_memory` of the one machine; files that travel to other
    machines through Ray's `object_store`; or from GPU to GPU by `nccl`, or by CUDA `ipc` within one machine."""

    swap_mode: SwapMode = "recompute"
    """What happens to requests in flight at a weight swap: `recompute` rebuilds their KV cache under the new weights,
    `keep` keeps it, `drain` lets them finish first."""

    swap_modes: tuple[SwapMode, ...] = ()
    """One for each replica, where they are to differ; empty gives all of them `swap_mode`."""

    sleep_level: Literal[1, 2] | None = None
    """For engines that share their GPUs with the trainer: they sleep while it steps. 1 moves the weights to the host's
    memory, 2 forgets them (all are sent at each swap); both give up the KV cache. Needs `staleness.max_lag = 0`."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of weights and activations. On a CPU without AVX-512 anything but float32 is ~300 times slower."""

    max_model_len: PositiveInt | None = None
    """Most tokens of prompt and sample together; None takes the model's own limit."""

    max_num_seqs: PositiveInt = 64
    """Most sequences that one engine samples at a time; more wait in its queue."""

    stream_interval: PositiveInt = 8
    """Tokens in one piece of a stream. 1 costs about a tenth of the throughput on two cores."""

    kv_cache_gib: PositiveFloat | None = 1.0
    """Memory for the KV cache of one engine, in GiB; None lets vLLM size it (on GPUs by the memory that is free)."""

    enforce_eager: bool = True
    """Run without compiled graphs: starts sooner. Worth turning off on GPUs for long runs."""

    threads: PositiveInt | None = None
    """OpenMP threads of one engine on CPU, not bound to cores. None is 1 where there are one or two cores; elsewhere it
    lets vLLM choose and bind them, which takes an engine longer to start."""

    extra_args: tuple[str, ...] = ()
    """More flags for the vLLM server, as on its command line: `["--tensor-parallel-size", "2"]`."""

    timeouts: EngineTimeouts = Field(default_factory=EngineTimeouts)
    """How long to wait for what."""

    @field_validator("urls")
    @classmethod
    def _urls_are_http(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is not an engine URL; write it as http://HOST:PORT")
        trimmed = tuple(url.rstrip("/") for url in urls)
        if len(set(trimmed)) != len(trimmed):
            raise ValueError(f"an engine URL is there twice: {list(urls)}; name each engine once")
        return trimmed

    @field_validator("ports")
    @classmethod
    def _ports_are_ports(cls, ports: tuple[int, ...]) -> tuple[int, ...]:
        for port in ports:
            if not 0 < port < 65536:
                raise ValueError(f"{port} is not a port; give 1 to 65535, or leave `ports` out for free ones")
        if len(set(ports)) != len(ports):
            raise ValueError(f"a port is there twice: {list(ports)}; give each replica one of its own")
        return ports

    @field_validator("extra_args")
    @classmethod
    def _extra_args_leave_ours_alone(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        for arg in args:
            flag = arg.split("=", 1)[0].replace("_", "-")
            if flag in MANAGED_FLAGS:
                raise ValueError(f"{flag} is set by agentrl; use the key of [engine] for it, or leave it out")
        return args

    @model_validator(mode="after")
    def _one_port_for_each_replica(self) -> EngineConfig:
        if self.ports and not self.urls and len(self.ports) != self.replicas:
            raise ValueError(f"{len(self.ports)} ports for {self.replicas} replicas; give one for each, or none")
        return self

    @model_validator(mode="after")
    def _one_swap_mode_for_each_replica(self) -> EngineConfig:
        if self.swap_modes and len(self.swap_modes) != self.replicas:
            raise ValueError(
                f"{len(self.swap_modes)} swap_modes for {self.replicas} replicas; give one for each, or none"
            )
        return self

    def swap_mode_of(self, index: int) -> SwapMode:
        return self.swap_modes[index] if self.swap_modes else self.swap_mode
