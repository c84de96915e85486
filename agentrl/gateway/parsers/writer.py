"""Parsed pieces → deltas, and which white space is dropped.

Dropped is white space around the reasoning, directly before a call, and after a call when another call or the end comes
next. All other text comes as it was sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Literal

from agentrl.gateway.deltas import Content, Delta, Reasoning, ToolCall

WHITE = " \t\r\n"


class Writer:
    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._deltas: list[Delta] = []
        self._last: Literal["", "reasoning", "content", "call"] = ""
        self._white: list[str] = []  # held back: whether it is dropped depends on what comes next
        self._has_reasoning = False
        self._has_content = False

    def reasoning(self, text: str) -> None:
        if self._last != "reasoning":
            self._keep_white("content")
            self._last = "reasoning"
        text = text if self._has_reasoning else text.lstrip(WHITE)
        if body := text.rstrip(WHITE):
            self._deltas.append(Reasoning(self._taken_white() + body))
            self._has_reasoning = True
        self._white.append(text[len(body) :])

    def end_reasoning(self) -> None:
        self._white.clear()
        self._last = "reasoning"

    def content(self, text: str) -> None:
        if self._last == "reasoning" and not self._has_content:
            text = text.lstrip(WHITE)
        if body := text.rstrip(WHITE):
            self._deltas.append(Content(self._taken_white() + body))
            self._last = "content"
            self._has_content = True
        self._white.append(text[len(body) :])

    def call(self, name: str, arguments: str) -> None:
        self._white.clear()
        self._deltas.append(ToolCall(self._new_id(), name, arguments))
        self._last = "call"

    def take(self) -> list[Delta]:
        """The deltas since the last one, neighbours of one kind joined."""
        deltas: list[Delta] = []
        for kind, same in groupby(self._deltas, type):
            if kind is ToolCall:
                deltas += same
            else:
                text = "".join(delta.text for delta in same if not isinstance(delta, ToolCall))
                deltas.append(Content(text) if kind is Content else Reasoning(text))
        self._deltas.clear()
        return deltas

    def close(self) -> None:
        """The text ended: what is still held back is white space, and it is text after text only."""
        self._keep_white("", "content")

    def _keep_white(self, *after: str) -> None:
        white = self._taken_white()
        if white and self._last in after:
            self._deltas.append(Content(white))

    def _taken_white(self) -> str:
        white = "".join(self._white)
        self._white.clear()
        return white
