"""The process over one environment: it watches, and when it ends nothing of the environment is left."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable

import msgspec

from agentrl.env.isolated import tree
from agentrl.env.isolated.kernel import adopt_orphans, die_with_parent, limit_this_process, wake_up_on
from agentrl.env.isolated.wire import Caps, Ended

QUICK_S, CALM_S = 0.05, 0.25
"""Between two looks: while the environment changes, and while it does not."""

END_S = 10.0  # for what was killed to be gone


def guard(
    control: socket.socket, data: socket.socket, caps: Caps, serve: Callable[[socket.socket], None], *, nursery: int
) -> None:
    """Runs `serve(data)` in a child. Returns when all its processes are gone, and told so on `control`.

    They are killed when the environment's own process ends, when it is over a cap, when the worker closes its side of
    `control` or dies, and when the nursery dies.
    """
    os.setsid()
    adopt_orphans()
    wakeups = wake_up_on(signal.SIGCHLD, signal.SIGTERM)
    die_with_parent(signal.SIGTERM, nursery)
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        control.close()
        wakeups.close()
        _become_environment(me, caps, functools.partial(serve, data))
    data.close()
    ended = _Watch(pid, caps).until_it_ends(control, wakeups)
    left = tree.end_children(timeout_s=END_S)
    with contextlib.suppress(OSError):  # the worker is gone
        control.sendall(msgspec.json.encode(msgspec.structs.replace(ended, left=left)))


class _Watch:
    def __init__(self, pid: int, caps: Caps) -> None:
        self._pid = pid
        self._caps = caps
        self._seen = (0, 0)  # processes and bytes at the last look
        self._pause = QUICK_S

    def until_it_ends(self, control: socket.socket, wakeups: socket.socket) -> Ended:
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(wakeups, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll(self._pause * 1000)]
            if control.fileno() in ready:
                return Ended(cause="told")
            if wakeups.fileno() in ready and signal.SIGTERM in wakeups.recv(4096):
                return Ended(cause="told")
            reaped: dict[int, int] = {}
            tree.reap_all(reaped)
            if self._pid in reaped:
                code = os.waitstatus_to_exitcode(reaped[self._pid])
                return Ended(cause="exited" if code >= 0 else "signalled", status=abs(code))
            if (over := self._over_a_cap()) is not None:
                return over

    def _over_a_cap(self) -> Ended | None:
        pids = tree.descendants_of(os.getpid())
        if len(pids) > self._caps.processes:
            return Ended(cause="processes", processes=len(pids))
        memory = tree.memory_of(pids)
        if memory > self._caps.memory_bytes:
            memory = tree.fair_memory_of(pids) or memory
            if memory > self._caps.memory_bytes:
                return Ended(cause="memory", memory_bytes=memory, processes=len(pids))
        changed = len(pids) != self._seen[0] or abs(memory - self._seen[1]) > 2**20
        self._pause = QUICK_S if changed else min(2 * self._pause, CALM_S)
        self._seen = (len(pids), memory)
        return None


def _become_environment(guard_pid: int, caps: Caps, environment: Callable[[], None]) -> None:
    """Never returns. A session of its own: what it does to its process group is no matter of ours."""
    status = 1
    try:
        os.close(signal.set_wakeup_fd(-1))
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        die_with_parent(signal.SIGKILL, guard_pid)
        limit_this_process(caps.memory_bytes)
        _detach_standard_streams()
        environment()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # at once: nothing of the nursery is to run its clean-up here


def _detach_standard_streams() -> None:
    """Nothing to read; what is printed goes where errors go, for standard output may be somebody's data."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
