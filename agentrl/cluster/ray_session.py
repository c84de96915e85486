"""Ray for one run: started on loopback, silent, without usage statistics, and gone afterwards."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from agentrl.errors import RunError

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


def start_ray() -> None:
    """Raises RunError when Ray does not start."""
    os.environ.update(_ENVIRONMENT)
    # User code is named relative to where the command was typed; workers start elsewhere.
    paths = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    import ray

    try:
        ray.init(
            address="local",
            num_cpus=max(2, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=True,
            logging_level=logging.ERROR,
            object_store_memory=256 * 1024 * 1024,
            _node_ip_address="127.0.0.1",
        )
    except Exception as error:
        raise RunError(f"Ray did not start: {error}; see its log under {_log_directory()}") from error


def stop_ray() -> None:
    if "ray" not in sys.modules:
        return
    import ray

    ray.shutdown()


def actor_class(cls: type, **options: Any) -> Any:
    """`cls` as a Ray actor class that takes no CPU slot: on one machine everything shares the cores anyway."""
    import ray

    return ray.remote(cls).options(num_cpus=0, max_restarts=0, **options)


def _log_directory() -> str:
    return os.path.join(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "session_latest", "logs")
