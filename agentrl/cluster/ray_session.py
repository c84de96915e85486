"""Ray for one run: started for it and gone afterwards, or joined where it runs already. Without usage statistics."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from typing import Any

from agentrl.cluster.processes import TAG
from agentrl.errors import RunError
from agentrl.train.cluster_config import ClusterConfig

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_WAIT_POLICY": "PASSIVE",  # engine and trainer share the cores: threads that spin slow the others tenfold
}


def start_ray(cluster: ClusterConfig | None = None, *, name: str = "agentrl") -> None:
    """`name`: the namespace of a run in a cluster that is joined. Raises RunError when there is no Ray after it."""
    cluster = cluster or ClusterConfig()
    os.environ.update(_ENVIRONMENT)
    # User code is named relative to where the command was typed; workers start elsewhere.
    paths = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": True, "logging_level": logging.ERROR}
    import ray

    try:
        if cluster.ray_address is None:
            _want_a_token()
            ray.init(
                address="local",
                num_cpus=max(2, os.cpu_count() or 1),
                include_dashboard=False,
                object_store_memory=256 * 1024 * 1024,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
        else:
            ray.init(address=cluster.ray_address, namespace=name, runtime_env=_worker_environment(cluster), **quiet)
    except Exception as error:
        if cluster.ray_address is None:
            raise RunError(f"Ray did not start: {error}; see its log under {_log_directory()}") from error
        raise RunError(
            f"Ray at cluster.ray_address = {cluster.ray_address!r} could not be joined: {error}; start the run on one "
            "of the cluster's nodes, with the Python, the Ray and, where it wants one, the token (RAY_AUTH_TOKEN) of "
            "the cluster"
        ) from error


def stop_ray() -> None:
    """Ends what was started, or leaves what was joined: a run's actors end with it."""
    if "ray" not in sys.modules:
        return
    import ray

    ray.shutdown()


def actor_class(cls: type, **options: Any) -> Any:
    """`cls` as a Ray actor class that takes no CPU slot: on one machine everything shares the cores anyway."""
    import ray

    return ray.remote(cls).options(**{"num_cpus": 0, "max_restarts": 0, **options})


def _want_a_token() -> None:
    """Whatever address it is given, Ray listens on all interfaces, and asks for a token: here one of the run's own."""
    if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"}:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _worker_environment(cluster: ClusterConfig) -> dict[str, Any]:
    """What workers of nodes that others started get of this process: never its keys, which it may have more of."""
    own = {name: os.environ[name] for name in ("PYTHONPATH", TAG) if name in os.environ}
    environment: dict[str, Any] = {"env_vars": _ENVIRONMENT | own}
    if cluster.working_dir is not None:
        environment["working_dir"] = cluster.working_dir
    return environment


def _log_directory() -> str:
    return os.path.join(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "session_latest", "logs")
