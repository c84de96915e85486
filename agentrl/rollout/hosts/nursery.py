"""The worker's side of a nursery: starts it, has it fork environments, and holds the two sockets of each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from typing import Any

import msgspec
import orjson

from agentrl.env.isolated.wire import LENGTH_BYTES, READY, Caps, Ended, body_length, frame
from agentrl.errors import EnvironmentCrash

log = logging.getLogger(__name__)

START_S = 120.0  # for the environment's imports, which may be torch's
STOP_S = 20.0  # longer than a guard takes to end what it guards
BUSY_S = 0.01  # between tries of a request that a nursery has no room for

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); arguments = sys.argv[2:]; sys.argv[:] = ['agentrl-env']; "
    "from agentrl.env.isolated.nursery import main; "
    "main(int(arguments[0]), arguments[1], arguments[2] == 'preload', int(arguments[3]))"
)


class Nursery:
    """Environments of one id, each in a process of its own. Started when the first is wanted, again when it died."""

    def __init__(self, env_id: str, caps: Caps) -> None:
        self._env_id = env_id
        self._caps = caps
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._preload = True

    async def spawn(self) -> EnvProcess:
        """Raises EnvironmentCrash when no process can be had."""
        requests = await self._running()
        with contextlib.ExitStack() as theirs:
            control, their_control = socket.socketpair()
            data, their_data = socket.socketpair()
            theirs.enter_context(their_control)
            theirs.enter_context(their_data)
            try:
                fds = [their_control.fileno(), their_data.fileno()]
                async with asyncio.timeout(START_S):
                    await _send_fds(requests, msgspec.json.encode(self._caps), fds)
            except BaseException as error:
                control.close()
                data.close()
                if isinstance(error, OSError):  # a TimeoutError too
                    raise EnvironmentCrash(f"no process for {self._env_id}: {error!r}") from error
                raise
        return EnvProcess(control, data)

    async def close(self) -> None:
        """Returns when the nursery has ended, and all that it forked."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        process, self._process = self._process, None
        if process is None:
            return
        if not await _ended(process, STOP_S):
            log.warning("the nursery of %s did not end within %g s and is killed", self._env_id, STOP_S)
            process.kill()
            await _ended(process, STOP_S)

    async def _running(self) -> socket.socket:
        async with self._starting:
            if self._process is not None and self._process.poll() is not None:
                log.warning("the nursery of %s died (exit status %d)", self._env_id, self._process.returncode)
                await self.close()
            if self._requests is None:
                if self._preload and not await self._start():
                    self._preload = False
                    log.warning(
                        "importing %s starts threads, hangs or ends its process, so every episode imports it itself, "
                        "which is slower; let its module import without side effects", self._env_id
                    )  # fmt: skip
                if self._requests is None and not await self._start():
                    raise EnvironmentCrash(f"no process for {self._env_id} could be started within {START_S:g} s")
            assert self._requests is not None
            return self._requests

    async def _start(self) -> bool:
        """Whether it runs, and can be forked."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            preload = "preload" if self._preload else "plain"
            # In the loop's own thread, for the nursery ends with the thread that started it; it takes a millisecond.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno()), self._env_id, preload,
                 str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )  # fmt: skip
        self._requests = ours
        said = b""
        try:
            async with asyncio.timeout(START_S):
                said = await asyncio.get_running_loop().sock_recv(ours, 64)
        except (TimeoutError, OSError):
            self._process.kill()
        finally:
            if said != READY:
                await self.close()
        return said == READY


class EnvProcess:
    """One environment's process, as its worker sees it: requests and answers, and how it ended."""

    def __init__(self, control: socket.socket, data: socket.socket) -> None:
        control.setblocking(False)
        data.setblocking(False)
        self._control = control
        self._data = data
        self._last_word = asyncio.create_task(self._hear(), name="environment process")

    async def ask(self, request: dict[str, Any]) -> Any:
        """Raises OSError or EOFError when the process is gone, ValueError or EnvironmentFault for no answer of ours,
        TypeError for a request that is no JSON."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._data, frame(request))
        return orjson.loads(await self._exactly(body_length(await self._exactly(LENGTH_BYTES))))

    def end(self) -> None:
        """Has all its processes killed; `ended` tells when they are gone."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def ended(self, timeout_s: float) -> Ended | None:
        """How it ended; None when its guard does not say so in time, or was killed itself."""
        done, _ = await asyncio.wait([self._last_word], timeout=timeout_s)
        return self._last_word.result() if done else None

    @property
    def is_gone(self) -> bool:
        return self._last_word.done()

    def close(self) -> None:
        self._last_word.cancel()
        self._control.close()
        self._data.close()

    async def _exactly(self, count: int) -> bytes:
        loop, parts = asyncio.get_running_loop(), bytearray()
        while len(parts) < count:
            part = await loop.sock_recv(self._data, min(count - len(parts), 2**20))
            if not part:
                raise EOFError("its connection is closed")
            parts += part
        return bytes(parts)

    async def _hear(self) -> Ended | None:
        loop, heard = asyncio.get_running_loop(), bytearray()
        try:
            while part := await loop.sock_recv(self._control, 4096):
                heard += part
            return msgspec.json.decode(heard, type=Ended) if heard else None
        except (OSError, msgspec.DecodeError):
            return None


async def _send_fds(requests: socket.socket, message: bytes, fds: list[int]) -> None:
    while True:
        try:
            socket.send_fds(requests, [message], fds)
        except BlockingIOError:
            await asyncio.sleep(BUSY_S)
        else:
            return


async def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while process.poll() is None:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True
