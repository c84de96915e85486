"""What of a run's configuration cannot be on the machines that it names, found before anything starts."""

from __future__ import annotations

from pathlib import Path

import psutil

from agentrl.config import RunConfig
from agentrl.engine.launch import cpu_only, listening_socket
from agentrl.engine.parallel import workers_of_engine
from agentrl.errors import ConfigError
from agentrl.rundir import RunDirectory

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "fuse.glusterfs"}
)


def check_cluster(config: RunConfig) -> None:
    """Raises ConfigError, with the fix."""
    workers_of_engine(config.engine.extra_args)
    if config.cluster.colocated and config.engine.sleep_level is None and not cpu_only():
        raise ConfigError(
            "cluster.colocated puts trainer ranks on the engines' GPUs, and engines that are awake leave no memory "
            'there; set mode = "colocated"'
        )
    if config.cluster.ray_address is None:
        _ports_are_free(config)
        return
    transfer = config.engine.weight_transfer
    if transfer in ("shared_memory", "ipc"):
        raise ConfigError(
            f'engine.weight_transfer = "{transfer}" stays within one machine, and cluster.ray_address joins a '
            'cluster; set "object_store", or "nccl" between GPUs'
        )
    if config.store_url is None or config.store_url.startswith("sqlite"):
        _sqlite_has_a_disk(config)


def _ports_are_free(config: RunConfig) -> None:
    """Of this machine; what others have in use is told when a part starts there."""
    if config.gateway.port:
        from agentrl.gateway.server import listen  # the driver needs nothing else of the server

        listen(config.gateway.host, config.gateway.port).close()
    for port in config.engine.ports:
        listening_socket(port).close()


def _sqlite_has_a_disk(config: RunConfig) -> None:
    """SQLite's write-ahead log needs memory that its readers and writers share, which network file systems lack."""
    path = RunDirectory(config.directory).store if config.store_url is None else _path_of(config.store_url)
    kind = file_system(path.absolute())
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"the trajectory store {path} would be an SQLite file on {kind}, where its journal is not safe; set "
            "store_url to PostgreSQL, or to an SQLite file on a disk of the driver's node"
        )


def _path_of(url: str) -> Path:
    return Path(url.partition(":///")[2].partition("?")[0])


def file_system(path: Path) -> str:
    """The kind of the file system that an absolute path is, or will be, on."""
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounts[folder] for folder in (path, *path.parents) if folder in mounts), "")
