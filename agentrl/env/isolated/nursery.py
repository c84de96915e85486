"""The process that environments are forked from: their code is imported once, so that one more costs milliseconds.

It runs no environment itself and keeps to one thread, for only such a process can be forked safely.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback

import msgspec

from agentrl.env import registry
from agentrl.env.isolated import tree
from agentrl.env.isolated.guard import guard
from agentrl.env.isolated.kernel import adopt_orphans, die_with_parent, wake_up_on
from agentrl.env.isolated.serve import serve
from agentrl.env.isolated.wire import NOT_ALONE, READY, Caps

MAX_REQUEST = 4096
GUARDS_END_S = 15.0  # longer than a guard takes for its environment


def main(fd: int, env_id: str, preload: bool, worker: int) -> None:
    """Forks a guard with its environment for every request on the socket `fd`, until the worker closes it."""
    requests = _socket(fd)
    die_with_parent(signal.SIGKILL, worker)  # also while the import hangs
    adopt_orphans()
    threads = len(os.listdir("/proc/self/task"))
    if preload:
        with contextlib.suppress(Exception):  # it is raised again where it costs an episode, and is told
            registry.env_class(env_id)
    if len(os.listdir("/proc/self/task")) > threads:
        requests.send(NOT_ALONE)
        return
    wakeups = wake_up_on(signal.SIGCHLD)
    gc.collect()
    gc.freeze()  # so that a collection in a fork does not copy every page
    requests.send(READY)
    _Nursery(requests, wakeups).run()


class _Nursery:
    def __init__(self, requests: socket.socket, wakeups: socket.socket) -> None:
        self._requests = requests
        self._wakeups = wakeups
        self._guards: set[int] = set()

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(self._wakeups, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._wakeups.fileno() in ready:
                self._wakeups.recv(4096)
                self._reap()
            if self._requests.fileno() in ready:
                message, fds, _, _ = socket.recv_fds(self._requests, MAX_REQUEST, 2)
                if not message:
                    break
                self._start(msgspec.json.decode(message, type=Caps), *map(_socket, fds))
        self._end()

    def _start(self, caps: Caps, control: socket.socket, data: socket.socket) -> None:
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_guard(caps, control, data, me)
        self._guards.add(pid)
        control.close()
        data.close()

    def _become_guard(self, caps: Caps, control: socket.socket, data: socket.socket, me: int) -> None:
        """Never returns."""
        status = 1
        try:
            self._requests.close()
            self._wakeups.close()
            os.close(signal.set_wakeup_fd(-1))
            guard(control, data, caps, serve, nursery=me)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        """A guard that was killed leaves its environment to this process, which ends it."""
        ended: dict[int, int] = {}
        tree.reap_all(ended)
        self._guards -= ended.keys()
        if any(os.WIFSIGNALED(status) for status in ended.values()):
            tree.end_children(timeout_s=GUARDS_END_S, but=self._guards)

    def _end(self) -> None:
        """Guards end by themselves when the worker is gone or has closed its side."""
        for pid in self._guards:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + GUARDS_END_S
        while not tree.reap_all() and time.monotonic() < deadline:
            time.sleep(0.005)
        tree.end_children(timeout_s=1.0)


def _socket(fd: int) -> socket.socket:
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)
