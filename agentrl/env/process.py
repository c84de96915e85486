"""Runs a program in a process of its own: time limit, capped output, and nothing of it left afterwards.

For programs that are trusted as the run itself is. What a policy wrote belongs in the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from agentrl.env.uninterrupted import to_the_end
from agentrl.errors import EnvironmentFault
from agentrl.tagged import tagged

TAG = "AGENTRL_PROCESS_TAG"
"""In the environment of everything that the program starts, by which what left its process group is found."""

DRAIN_S = 1.0  # for output that is still in the pipes when the program has ended
KILL_S = 5.0
CHUNK = 1 << 16


class Finished(Struct, frozen=True, kw_only=True):
    """How a program ended."""

    status: int | None  # exit status, negative for the signal that ended it; None when its time was over
    stdout: str  # its last `max_output` bytes
    stderr: str


async def run_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    stdin: bytes = b"",
    timeout_s: float | None = None,
    max_output: int = 65536,
) -> Finished:
    """Runs `argv`, never through a shell, in a session of its own, with exactly the variables of `env`.

    When it ends, its time is over or the caller is cancelled, everything that it started is killed. Raises
    EnvironmentFault when it cannot be started.

    A thread watches it: uvloop, which Ray's workers have, starts no processes from several event loops at once.
    """
    stopped, stop = os.pipe()
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Finished] = loop.create_future()

    def work() -> None:
        try:
            with _Running(argv, env, cwd, stdin, max_output) as running:
                result, error = running.until_it_ends(stopped, timeout_s), None
        except BaseException as failure:
            result, error = None, failure
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_settle, done, result, error)

    threading.Thread(target=work, name=f"agentrl-process-{argv[0]}", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        os.write(stop, b"!")
        await to_the_end(_wait_for(done))
        raise
    finally:
        os.close(stop)
        os.close(stopped)


async def _wait_for(done: asyncio.Future[Finished]) -> None:
    await asyncio.wait({done})


def _settle(done: asyncio.Future[Finished], result: Finished | None, error: BaseException | None) -> None:
    if result is not None:
        done.set_result(result)
    else:
        done.set_exception(error or RuntimeError("a process ended without a result"))


class _Running:
    """A program and its pipes. Leaving the block leaves nothing of it."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, stdin: bytes, max_output: int
    ) -> None:
        self._tag = secrets.token_hex(8)
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                argv, env={**env, TAG: self._tag}, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise EnvironmentFault(
                f"{argv[0]!r} cannot be started: {error}; give a program and its arguments"
            ) from error
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._input, self._left = process.stdin, memoryview(stdin)
        self._tails = {process.stdout.fileno(): _Tail(max_output), process.stderr.fileno(): _Tail(max_output)}
        self._selector = selectors.DefaultSelector()
        for pipe_end in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe_end.fileno(), False)
        for descriptor in self._tails:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._selector.register(self._input, selectors.EVENT_WRITE)

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            kill_all(self._process.pid, self._tag)
        self._selector.close()
        for pipe_end in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe_end is not None:
                with contextlib.suppress(OSError):
                    pipe_end.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_S)

    def until_it_ends(self, stopped: int, timeout_s: float | None) -> Finished:
        """Reads and writes until the program ends, its time is over, or there is something to read in `stopped`.

        Its own end, not that of its pipes: some child may hold those open.
        """
        ended = os.pidfd_open(self._process.pid)
        try:
            for descriptor in (ended, stopped):
                self._selector.register(descriptor, selectors.EVENT_READ)
            timed_out = not self._talk({ended, stopped}, timeout_s)
            for descriptor in (ended, stopped):
                self._selector.unregister(descriptor)
        finally:
            os.close(ended)
        kill_all(self._process.pid, self._tag)
        self._talk(set(), DRAIN_S)  # what is still in the pipes
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_S)
        out, err = (tail.text() for tail in self._tails.values())
        return Finished(status=None if timed_out else self._process.returncode, stdout=out, stderr=err)

    def _talk(self, until: set[int], timeout_s: float | None) -> bool:
        """Whether one of `until` came, or every pipe is closed, in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._selector.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            for key, _ in self._selector.select(left):
                if key.fd in until:
                    return True
                self._pump(key.fd)
        return True

    def _pump(self, descriptor: int) -> None:
        if descriptor in self._tails:
            chunk = os.read(descriptor, CHUNK)
            self._tails[descriptor].add(chunk)
            if not chunk:
                self._selector.unregister(descriptor)
            return
        with contextlib.suppress(BrokenPipeError):  # a program need not read its input
            self._left = self._left[os.write(descriptor, self._left[:CHUNK]) :] if self._left else self._left
            if self._left:
                return
        self._selector.unregister(self._input)
        self._input.close()


class _Tail:
    """The last bytes of a stream, however long it is."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()
        self._left_out = 0

    def add(self, chunk: bytes) -> None:
        self._held += chunk
        over = len(self._held) - self._limit
        if over > 0:
            del self._held[:over]
            self._left_out += over

    def text(self) -> str:
        text = self._held.decode(errors="replace")
        return f"[{self._left_out} bytes left out]\n{text}" if self._left_out else text


def kill_all(group: int, tag: str) -> None:
    """Kills the process group, and every process with the tag."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    kill_tagged(tag)


def kill_tagged(tag: str) -> None:
    """Kills every process that has `tag` in its variable TAG, until there is none: some may be starting others."""
    until = time.monotonic() + KILL_S
    while (found := tagged(TAG, tag)) and time.monotonic() < until:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
