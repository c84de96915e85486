"""The socket of a server that a command starts."""

from __future__ import annotations

import socket

from agentrl.errors import ConfigError

BACKLOG = 2048


def listening(host: str, port: int) -> socket.socket:
    """0 takes a free port. Raises ConfigError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; give another --port") from error
