"""The APIs that agents speak to the gateway, one file each."""

from __future__ import annotations

from typing import Any

from agentrl.gateway.dialects.base import Dialect
from agentrl.gateway.dialects.chat import CHAT
from agentrl.gateway.dialects.completions import COMPLETIONS
from agentrl.gateway.dialects.generate import GENERATE
from agentrl.gateway.dialects.messages import MESSAGES
from agentrl.gateway.dialects.responses import RESPONSES

ALL: tuple[Dialect[Any], ...] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE)
