"""Starts the workers of a gateway, starts again those that die, and ends them all with itself.

It holds the sockets that they listen on, so a worker keeps its port through every restart, and who connects meanwhile
waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Sequence

import msgspec

from agentrl.errors import ConfigError, RunError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.server import listen, url_of
from agentrl.gateway.workers.link import Assignment, Ready, Serving, Up, line, report
from agentrl.gateway.workers.placement import Placement
from agentrl.gateway.workers.restarts import RestartPolicy, Restarts
from agentrl.gateway.workers.seat import Seat

logger = logging.getLogger(__name__)

START_S = 120.0
STOP_S = 40.0
KILL_S = 5.0
MAX_LINE = 2**20


class Worker:
    """One worker: what it is assigned, its socket and, while it lives, its process."""

    def __init__(self, assignment: Assignment, listener: socket.socket, restarts: Restarts) -> None:
        self.assignment = assignment
        self.listener = listener
        self.restarts = restarts
        self.process: asyncio.subprocess.Process | None = None
        self.orders: asyncio.StreamWriter | None = None
        self.up = False
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        """Of its first start. Raises why it failed."""

    @property
    def index(self) -> int:
        return self.assignment.seat.at.index


class Supervisor:
    """`await start()`, then `await wait()`, then `await stop()`.

    `command` starts a worker's process; the numbers of two inherited files are added to it, of its link and of the
    socket that it is to listen on.
    """

    def __init__(
        self,
        command: Sequence[str],
        config: GatewayConfig,
        *,
        tokenizer: str,
        store_url: str | None,
        admin_key: str,
        policy: RestartPolicy = RestartPolicy(),  # noqa: B008 (frozen)
    ) -> None:
        self._command = command
        self._config = config
        self._tokenizer = tokenizer
        self._store_url = store_url
        self._admin_key = admin_key
        self._policy = policy
        self._workers: list[Worker] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False
        self.warnings: list[str] = []

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    async def start(self) -> str:
        """The gateway's URL, when all workers have their engines.

        Raises ConfigError or RunError for what one of them cannot start for; then none is left.
        """
        try:
            self._workers = self._seats()
            self._keepers = [
                asyncio.create_task(self._keep(worker), name=f"gateway worker {worker.index}")
                for worker in self._workers
            ]
            try:
                async with asyncio.timeout(START_S):
                    ready = await asyncio.gather(*(worker.ready for worker in self._workers))
            except TimeoutError:
                raise RunError(f"the gateway's workers did not start in {START_S:g} s") from None
        except BaseException:
            await self.stop()
            raise
        self.warnings = ready[0].warnings
        return self._config.public_url or url_of(self._workers[0].listener)

    async def wait(self) -> None:
        """Raises RunError when a worker died too often; returns never."""
        done, _ = await asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Ends all workers, in order as far as they do it in time. Safe to call twice."""
        self._stopping = True
        for worker in self._workers:
            worker.listener.close()
            _signal(worker, signal.SIGTERM)
        if not self._keepers:
            return
        for number, limit_s in ((signal.SIGKILL, STOP_S), (None, KILL_S)):
            await asyncio.wait(self._keepers, timeout=limit_s)
            for worker in self._workers:
                if number is not None:
                    _signal(worker, number)
        for task in self._keepers:
            task.cancel()
        await asyncio.wait(self._keepers)

    def _seats(self) -> list[Worker]:
        """Raises ConfigError when the port is taken."""
        config, count = self._config, self._config.workers
        listeners = [listen(config.host, config.port)]
        listeners += [listen(config.host, 0) for _ in range(count - 1)]
        urls, key = tuple(_own_url(listener) for listener in listeners), secrets.token_urlsafe(32)
        return [
            Worker(
                Assignment(
                    seat=Seat(Placement(index, count), urls, key),
                    config=config.model_dump(mode="json"),
                    tokenizer=self._tokenizer,
                    store_url=self._store_url,
                    admin_key=self._admin_key,
                    up=[],
                ),
                listener,
                Restarts(self._policy),
            )
            for index, listener in enumerate(listeners)
        ]

    async def _keep(self, worker: Worker) -> None:
        """Runs it again and again. Returns when it is to end; raises RunError when it dies too often."""
        while not self._stopping:
            status = await self._run(worker)
            if self._stopping:
                return
            self._fail_start(worker, RunError(f"worker {worker.index} of the gateway died with status {status}"))
            delay_s = worker.restarts.died(time.monotonic())
            if delay_s is None:
                raise RunError(
                    f"worker {worker.index} of the gateway died {self._policy.deaths + 1} times in "
                    f"{self._policy.window_s:g} s, at last with status {status}; what it logged says why"
                )
            logger.warning("worker %d died with status %s; it is started again", worker.index, status)
            await asyncio.sleep(delay_s)

    async def _run(self, worker: Worker) -> int | None:
        """One process, from its start to its end. Returns its exit status."""
        ours, theirs = socket.socketpair()
        files = (theirs.fileno(), worker.listener.fileno())
        try:
            worker.process = process = await asyncio.create_subprocess_exec(
                *self._command,
                *map(str, files),
                pass_fds=files,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal comes to the supervisor alone, and from there
                env={name: value for name, value in os.environ.items() if name != "AGENTRL_ADMIN_KEY"},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        if self._stopping:  # it was asked of all while this one began
            _signal(worker, signal.SIGTERM)
        try:
            reports, worker.orders = await asyncio.open_connection(sock=ours, limit=MAX_LINE)
            worker.orders.write(line(msgspec.structs.replace(worker.assignment, up=self._up())))
            with contextlib.suppress(ConnectionError):
                while data := await reports.readline():
                    self._heard(worker, data)
            return await process.wait()
        finally:
            worker.up = False
            self._tell_who_is_up()
            if worker.orders is not None:
                worker.orders.close()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _heard(self, worker: Worker, data: bytes) -> None:
        said = report(data)
        if isinstance(said, Serving):
            worker.up = True
            self._tell_who_is_up()
        elif isinstance(said, Ready):
            if not worker.ready.done():
                worker.ready.set_result(said)
            else:
                logger.warning("worker %d serves again", worker.index)
        else:
            self._fail_start(worker, (ConfigError if said.mistaken else RunError)(said.message))

    def _fail_start(self, worker: Worker, error: Exception) -> None:
        if not worker.ready.done():
            worker.ready.set_exception(error)
            worker.ready.exception()  # others may have failed before it

    def _up(self) -> list[int]:
        return [worker.index for worker in self._workers if worker.up]

    def _tell_who_is_up(self) -> None:
        message = line(Up(self._up()))
        for worker in self._workers:
            if worker.orders is not None and not worker.orders.is_closing():
                worker.orders.write(message)


def _signal(worker: Worker, number: signal.Signals) -> None:
    if worker.process is not None and worker.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            worker.process.send_signal(number)


def _own_url(listener: socket.socket) -> str:
    """Where the other workers, on the same machine, reach it: by loopback if it listens there."""
    host, port = listener.getsockname()[:2]
    if host == "0.0.0.0":
        return f"http://127.0.0.1:{port}"
    return f"http://[::1]:{port}" if host == "::" else url_of(listener)
