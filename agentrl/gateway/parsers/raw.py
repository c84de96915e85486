"""Answers to prompts that the client wrote itself: the text as it is."""

from __future__ import annotations

from agentrl.gateway.deltas import Content, Delta
from agentrl.gateway.parsers.base import ParseOptions


class RawParser:
    def __init__(self, options: ParseOptions) -> None:
        self.reasoning_end = 0

    def feed(self, text: str) -> list[Delta]:
        return [Content(text)] if text else []

    def finish(self, *, stopped: bool) -> list[Delta]:
        return []
