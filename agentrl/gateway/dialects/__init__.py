"""The APIs that agents speak to the gateway, one file each."""

from __future__ import annotations

from typing import Any

from agentrl.gateway.dialects.base import Dialect
from agentrl.gateway.dialects.chat import CHAT

ALL: tuple[Dialect[Any], ...] = (CHAT,)
