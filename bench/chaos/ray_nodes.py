"""A Ray cluster of several nodes on this machine: each node has its own network, processes and shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

START_S = 60.0
OWN_WORLD = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts"]
RAY = Path(sys.executable).parent / "ray"
FAST_DEATH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""A node that is gone is noticed after 3 s instead of 30."""


class NodeFailed(Exception):
    """A node that cannot be had."""


@dataclass
class RayNode:
    """`address` is its own on the bridge. Its first process is `init`: with it, everything on the node is gone."""

    name: str
    address: str
    cpus: int
    resources: Mapping[str, float] = field(default_factory=dict)
    init: psutil.Process | None = None


class RayNodes:
    """The first node is the head. What is started with `command` runs on that node, as anything there would.

    `environment` has the token without which nobody joins.
    """

    port = 6379

    def __init__(self, folder: Path, nodes: Sequence[RayNode], tag: str) -> None:
        self._folder, self.nodes, self._tag = folder, list(nodes), tag
        self._networks: set[str] = set()
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

    @property
    def head(self) -> str:
        return f"{self.nodes[0].address}:{self.port}"

    def command(self, node: RayNode, *arguments: str, cwd: Path) -> list[str]:
        assert node.init is not None
        entered = ["nsenter", "--target", str(node.init.pid), "--net", "--pid", "--mount", "--uts", f"--wdns={cwd}"]
        return [*entered, *arguments]

    def has(self, pid: int) -> bool:
        """Whether a process is on one of the nodes."""
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{pid}/ns/net") in self._networks
        return False

    def start(self) -> None:
        """The others side by side, once the head is there."""
        for nodes in (self.nodes[:1], self.nodes[1:]):
            waiting = [(node, self._start(node)) for node in nodes]
            for node, outer in waiting:
                self._wait_until_up(node, outer)
                self._networks.add(os.readlink(f"/proc/{outer.pid}/ns/net"))

    def kill(self, node: RayNode) -> None:
        """The power is off: nothing of the node says goodbye, and no connection to it is closed."""
        assert node.init is not None
        _ip("link", "set", _link(self._tag, self.nodes.index(node)), "down")
        node.init.send_signal(signal.SIGKILL)
        node.init.wait(START_S)
        node.init = None

    def revive(self, node: RayNode) -> None:
        """The power is on again, and the node joins as a new one."""
        _ip("link", "set", _link(self._tag, self.nodes.index(node)), "up")
        self._wait_until_up(node, self._start(node))

    def _start(self, node: RayNode) -> subprocess.Popen[bytes]:
        is_head = node is self.nodes[0]
        where = (
            ["--head", f"--port={self.port}", "--include-dashboard=false"] if is_head else [f"--address={self.head}"]
        )
        script = (
            f"hostname {node.name}; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /tmp/ray; "
            f"{RAY} start {' '.join(where)} --node-ip-address={node.address} --num-cpus={node.cpus} --num-gpus=0 "
            f"--object-store-memory={128 << 20} --disable-usage-stats "
            f"--resources='{json.dumps(dict(node.resources))}' --block & wait"
        )
        with self._log(node).open("wb") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", _namespace(self._tag, node), *OWN_WORLD, "sh", "-c", script],
                env={**os.environ, **FAST_DEATH, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_until_up(self, node: RayNode, outer: subprocess.Popen[bytes]) -> None:
        log = self._log(node)

        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if outer.poll() is not None:
                raise NodeFailed(f"{node.name} did not start: {log.read_text()}")
            children = psutil.Process(outer.pid).children()
            node.init = children[0] if children else None
            if "Ray runtime started" in log.read_text():
                return
            time.sleep(0.1)
        raise NodeFailed(f"{node.name} did not start in {START_S:g} s: {log.read_text()}")

    def _log(self, node: RayNode) -> Path:
        return self._folder / f"{node.name}.log"


@contextlib.contextmanager
def ray_nodes(folder: Path, *cpus: int, resources: Sequence[Mapping[str, float]] = ()) -> Iterator[RayNodes]:
    """One node for each number of `cpus`. Raises NodeFailed with the reason where this machine cannot have them."""
    if why := missing():
        raise NodeFailed(f"several Ray nodes need network namespaces: {why}")
    tag = secrets.token_hex(2)
    net = f"10.{100 + int(tag[:2], 16) // 2}.{int(tag[2:], 16)}"
    wanted = list(resources) or [{}] * len(cpus)
    nodes = [RayNode(f"node{index}", f"{net}.{index + 1}", count, wanted[index]) for index, count in enumerate(cpus)]
    made = RayNodes(folder, nodes, tag)
    try:
        _wire(tag, net, nodes)
        made.start()
        yield made
    finally:
        for node in nodes:
            if node.init is not None and node.init.is_running():
                made.kill(node)
        _unwire(tag, nodes)


def missing() -> str | None:
    if os.geteuid() != 0:
        return "they take root"
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    own = subprocess.run([*OWN_WORLD, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, text=True)
    if own.returncode != 0:
        return own.stderr.strip()
    probe = f"agentrl-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return made.stderr.strip() or None


def _wire(tag: str, net: str, nodes: Sequence[RayNode]) -> None:
    Path("/tmp/ray").mkdir(exist_ok=True)
    bridge = f"arl{tag}"
    _ip("link", "add", bridge, "type", "bridge")
    _ip("link", "set", bridge, "up")
    for index, node in enumerate(nodes):
        namespace, here = _namespace(tag, node), _link(tag, index)
        _ip("netns", "add", namespace)
        _ip("link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", here, "master", bridge, "up")
        _ip("-n", namespace, "address", "add", f"{node.address}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "link", "set", "eth0", "up")


def _unwire(tag: str, nodes: Sequence[RayNode]) -> None:
    for node in nodes:
        subprocess.run(["ip", "netns", "del", _namespace(tag, node)], capture_output=True)
    subprocess.run(["ip", "link", "del", f"arl{tag}"], capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _link(tag: str, index: int) -> str:
    """The bridge's end of a node's cable."""
    return f"arl{tag}v{index}"


def _namespace(tag: str, node: RayNode) -> str:
    return f"agentrl-{tag}-{node.name}"
