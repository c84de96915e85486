"""What a supervisor and a worker tell each other, over a socket pair: lines of JSON, each one message.

The link is also the supervisor's life: it closes however the supervisor ends, and the worker ends with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from agentrl.gateway.workers.seat import Seat
from agentrl.parent import die_with_parent_thread


class Assignment(Struct, tag=True):
    """The first message to a worker: all that it has to know. Secrets travel here alone."""

    seat: Seat
    config: dict[str, Any]  # GatewayConfig, of the whole gateway
    tokenizer: str
    store_url: str | None
    admin_key: str
    up: list[int]


class Up(Struct, tag=True):
    """To a worker: which workers serve."""

    workers: list[int]


class Serving(Struct, tag=True):
    """From a worker: it answers, and what engines there are it will know in a moment."""


class Ready(Struct, tag=True):
    """From a worker: it has its engines. `warnings` are for whoever started the gateway."""

    warnings: list[str]


class Failed(Struct, tag=True):
    """From a worker: it cannot start, and why. `mistaken`: by a mistake in the configuration."""

    message: str
    mistaken: bool


Order = Assignment | Up
Report = Serving | Ready | Failed

_reports = msgspec.json.Decoder(Report)
_orders = msgspec.json.Decoder(Order)


def line(message: Order | Report) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def report(data: bytes) -> Report:
    return _reports.decode(data)


class WorkerLink:
    """The worker's end; `fd` was inherited."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._orders = self._socket.makefile("rb")

    def assignment(self) -> Assignment:
        """Waits for it. From here on, the worker dies with its supervisor."""
        die_with_parent_thread()  # for a worker that is stopped and cannot see the link close
        first = self._orders.readline()
        if not first:
            os._exit(1)
        order = _orders.decode(first)
        assert isinstance(order, Assignment)
        return order

    def listen(self, are_up: Callable[[Iterable[int]], None]) -> None:
        """From a thread of its own, so that a busy event loop does not outlive the supervisor either."""
        loop = asyncio.get_running_loop()

        def follow() -> None:
            for data in self._orders:
                order = _orders.decode(data)
                if isinstance(order, Up):
                    loop.call_soon_threadsafe(are_up, order.workers)
            os._exit(1)  # as killed: open sessions are left for the next gateway of this name

        threading.Thread(target=follow, name="supervisor link", daemon=True).start()

    def say(self, message: Report) -> None:
        self._socket.sendall(line(message))
