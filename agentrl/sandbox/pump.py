"""Feeds a process and reads it without ever waiting for it: neither a silent nor a flooding program blocks us."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time

from agentrl.sandbox.output import KeptOutput

_CHUNK = 65536


class Pump:
    """The pipes of one process, and whether it has ended. Close it when done, which reaps the process."""

    def __init__(self, process: subprocess.Popen[bytes], kept_bytes: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin: int | None = process.stdin.fileno()
        self._stdout = process.stdout.fileno()
        self._unsent = memoryview(b"")
        self._last = False
        self._ended = os.pidfd_open(process.pid)
        self.has_ended = False
        self._reaped: tuple[int, float] | None = None
        self.restart_output(kept_bytes)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._open = {self._stdout, process.stderr.fileno()}
        for pipe in (self._stdin, *self._open):
            os.set_blocking(pipe, False)
        for pipe in self._open:
            self._selector.register(pipe, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._process.pid

    def restart_output(self, kept_bytes: int) -> None:
        """Forgets what was written up to now."""
        self.stdout = KeptOutput(kept_bytes)
        self.stderr = KeptOutput(kept_bytes)

    def feed(self, data: bytes, *, last: bool) -> None:
        """What is sent next. After the `last` of it the process reads the end of the file."""
        assert not self._unsent
        self._unsent, self._last = memoryview(data), last
        if self._stdin is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._stdin)
            self._selector.register(self._stdin, selectors.EVENT_WRITE)

    def turn(self, timeout_s: float) -> None:
        """Moves what can be moved now, or within `timeout_s`."""
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            if key.fd == self._ended:
                self.has_ended = True
            elif key.fd == self._stdin:
                self._send()
            else:
                self._receive(key.fd)

    def drain(self, grace_s: float) -> None:
        """Reads what a dead process left in its pipes. Whoever else holds them open is not waited for."""
        deadline = time.monotonic() + grace_s
        while self._open and (left := deadline - time.monotonic()) > 0:
            self.turn(left)
            if self.has_ended:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(self._ended)

    def close(self) -> tuple[int, float]:
        """Reaps the process; kills it first when it still lives.

        Returns its exit code, 128 + signal for one, and the processor seconds of it and of all that it waited for.
        """
        if self._reaped is not None:
            return self._reaped
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, signal.SIGKILL)
        _, status, used = os.wait4(self._process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        self._selector.close()
        os.close(self._ended)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._reaped = (code if code >= 0 else 128 - code), used.ru_utime + used.ru_stime
        return self._reaped

    def _send(self) -> None:
        assert self._stdin is not None
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._stdin, self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more
            self._unsent, self._last = memoryview(b""), True
        self._selector.unregister(self._stdin)
        if self._last:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._stdin = None

    def _receive(self, pipe: int) -> None:
        try:
            chunk = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self._selector.unregister(pipe)
            self._open.discard(pipe)
            return
        (self.stdout if pipe == self._stdout else self.stderr).add(chunk)
