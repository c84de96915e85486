"""`EngineReplica`: starts, health-checks and stops one vLLM server process with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from agentrl.engine.config import EngineConfig
from agentrl.engine.empty_adapter import write_empty_adapter
from agentrl.engine.launch import (
    LOOPBACK,
    VLLM_SERVER,
    check_vllm,
    listening_socket,
    server_environment,
    server_flags,
    tail,
)
from agentrl.errors import EngineError

POLL_S = 0.1
NO_KEEP_ALIVE = httpx.Limits(max_keepalive_connections=0)
"""A probe finds out whether a server takes connections, and leaves none behind."""


class EngineReplica:
    """One vLLM server in a process group of its own, which never outlives this process. Blocking; not thread-safe.

    `weights_dir` is the only directory that the server takes new weights from. With an `adapter_rank` above 0 it serves
    a low-rank adapter under the name `launch.ADAPTER`, at first one without effect, and its swaps bring adapters.
    It listens on `host`; with a `key` it answers nobody who does not have it. `command` starts the server; tests give a
    fake one that takes the same flags.
    """

    def __init__(
        self,
        model: str | Path,
        config: EngineConfig,
        *,
        logs_dir: Path,
        weights_dir: Path,
        index: int = 0,
        adapter_rank: int = 0,
        host: str = LOOPBACK,
        key: str | None = None,
        command: Sequence[str] = VLLM_SERVER,
    ) -> None:
        """Raises EngineError for a server on a network that anybody there could command."""
        if key is None and host != LOOPBACK:
            raise EngineError(f"an engine on {host} needs a key; give one, or leave it on {LOOPBACK}")
        self.name = f"engine-{index}"
        self.log_path = logs_dir / f"{self.name}.log"
        self.url: str | None = None
        self._model, self._config, self._weights_dir = model, config, weights_dir
        self._adapter_rank = adapter_rank
        self._host, self._key = host, key
        self._port = config.ports[index] if config.ports else None
        self._command = tuple(command)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(headers=headers, limits=NO_KEEP_ALIVE, trust_env=False)
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None  # write end; the server's group dies when it closes

    def start(self, progress: Callable[[str], None] | None = None) -> str:
        """Starts the server and returns its URL once it is healthy; `progress` hears one line now and then.

        Raises ConfigError (port in use, wrong vLLM) and EngineError (died, or not healthy in time); no process is
        left then.
        """
        if self._process is not None:
            raise EngineError(f"{self.name} was started already; stop it first")
        if self._command == VLLM_SERVER:
            check_vllm()
        self._spawn()
        assert self.url is not None
        try:
            self._wait_until_healthy(progress)
        except BaseException:
            self.stop()
            raise
        return self.url

    def running(self) -> bool:
        """Whether the server process runs."""
        return self._process is not None and self._process.poll() is None

    def alive(self) -> bool:
        """Whether it runs and answers: the server its health check, and what samples behind it a question of its own.

        The latter may take it long within a weight swap.
        """
        limit_s = self._config.timeouts.probe_s
        return self.running() and self._healthy(limit_s) and self._answers("/weight_info", limit_s)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL, to the server and all that it started. Nothing is left after it; may be repeated."""
        self._end(signal.SIGTERM, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL at once, which also ends what is stopped or hangs. Else as `stop`."""
        self._end(signal.SIGKILL)

    def _end(self, *signals: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for signum in signals:
            if not _group_runs(process):
                break
            _signal_group(process.pid, signum)
            deadline = time.monotonic() + self._config.timeouts.stop_s
            while _group_runs(process) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _spawn(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._weights_dir.mkdir(parents=True, exist_ok=True)
        rank, adapter = self._adapter_rank, None
        if rank:
            adapter = write_empty_adapter(self._weights_dir / f"{self.name}-adapter", Path(self._model))
        read_end, write_end = os.pipe()
        try:
            with listening_socket(self._port, self._host) as sock, self.log_path.open("ab") as log:
                port = sock.getsockname()[1]
                flags = server_flags(
                    self._model,
                    self._config,
                    port,
                    adapter_rank=rank,
                    adapter=adapter,
                    host=self._host,
                    guarded=self._key is not None,
                )
                inherited = ["--listen-fd", str(sock.fileno()), "--lifeline-fd", str(read_end)]
                self._process = subprocess.Popen(
                    [*self._command, *inherited, *flags],
                    env=server_environment(self._config, self._weights_dir, os.environ, adapter=adapter, key=self._key),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(sock.fileno(), read_end),
                    process_group=0,  # no session of its own: Linux would weigh it against all other processes together
                )
                self.url = f"http://{self._host}:{port}"
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        self._lifeline = write_end

    def _wait_until_healthy(self, progress: Callable[[str], None] | None) -> None:
        assert self._process is not None
        started, limit_s = time.monotonic(), self._config.timeouts.startup_s
        while not self._healthy(POLL_S * 10):
            waited_s = time.monotonic() - started
            code = self._process.poll()
            if code is not None:
                raise EngineError(
                    f"{self.name} died at start with status {code}; its log {self.log_path} says why, and ends:\n"
                    f"{tail(self.log_path)}"
                )
            if waited_s > limit_s:
                raise EngineError(
                    f"{self.name} was not healthy within {limit_s:g} s; raise engine.timeouts.startup_s, or see why in "
                    f"its log {self.log_path}, which ends:\n{tail(self.log_path)}"
                )
            if progress is not None:
                progress(f"{self.name}: starting vLLM, {waited_s:.0f} s")
            time.sleep(0.5)

    def _healthy(self, limit_s: float) -> bool:
        return self._answers("/health", limit_s)

    def _answers(self, path: str, limit_s: float) -> bool:
        try:
            return self._http.get(f"{self.url}{path}", timeout=limit_s).is_success
        except httpx.HTTPError:
            return False


def _signal_group(group: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signum)


def _group_runs(leader: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the leader's group still runs; reaps the leader, does not count zombies."""
    leader.poll()
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == leader.pid and process.status() != psutil.STATUS_ZOMBIE:
                return True
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return False
