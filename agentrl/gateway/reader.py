"""Sampled ids → deltas, token by token or all at once: detokenised, cut at the stop string, parsed.

Streamed and collected answers go through the same reader, so they say the same.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from agentrl.gateway.deltas import Delta, ToolCall, message_of
from agentrl.gateway.detokenize import StreamDecoder
from agentrl.gateway.parsers.base import OutputParser


class Reader:
    """Of one answer. `end_ids` end a turn and are no text where they do.

    It ends the answer at the first of `stops`, the request's stop strings, and with `one_call` behind the first call.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        parser: OutputParser,
        *,
        end_ids: Set[int],
        stops: Sequence[str] = (),
        one_call: bool = False,
    ) -> None:
        self._decoder = decoder
        self._parser = parser
        self._end_ids = end_ids
        self._stops = stops
        self._one_call = one_call
        self._deltas: list[Delta] = []
        self._held_end: list[int] = []  # an end token that may be the last one
        self._held_text = ""  # may be the beginning of a stop string
        self.may_end = bool(stops) or one_call  # by itself
        self.ended = False  # by itself; nothing is read beyond that
        self.num_read = 0  # tokens
        self.stop: str | None = None  # the stop string that ended it

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Reads up to the token that ends the answer; see `num_read`, `ended` and `stop`."""
        if not self.may_end:
            self.num_read += len(token_ids)
            return self._keep(self._parser.feed(self._text_of(token_ids)))
        deltas: list[Delta] = []
        for token_id in token_ids:
            if self.ended:
                break
            self.num_read += 1
            deltas += self._up_to_call(self._parser.feed(self._before_stop(self._text_of([token_id]))))
        return self._keep(deltas)

    def finish(self, *, stopped: bool) -> list[Delta]:
        """The rest. `stopped`: the model or a stop string ended it, not a limit."""
        if self.ended and self.stop is None:  # what follows the call was read to see that it ends
            return []
        text = self._decoder.finish()
        if not self.ended:
            text = self._before_stop(text)
            text, self._held_text = text if self.ended else text + self._held_text, ""
        return self._keep(self._up_to_call([*self._parser.feed(text), *self._parser.finish(stopped=stopped)]))

    def message(self) -> dict[str, Any]:
        """The assistant message of all that was read."""
        return message_of(self._deltas)

    @property
    def reasoning_end(self) -> int:
        return self._parser.reasoning_end

    def _keep(self, deltas: list[Delta]) -> list[Delta]:
        self._deltas += deltas
        return deltas

    def _text_of(self, token_ids: Sequence[int]) -> str:
        if not token_ids:
            return ""
        ids = [*self._held_end, *token_ids]
        self._held_end = [ids.pop()] if ids[-1] in self._end_ids else []
        return self._decoder.feed(ids)

    def _before_stop(self, text: str) -> str:
        """What of the text can be given out: not a stop string, nor what may yet become one."""
        if not self._stops:
            return text
        text = self._held_text + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stop = min(found)
            self._held_text, self.ended = "", True
            return text[:at]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held_text = text[len(text) - held :]
        return text[: len(text) - held]

    def _up_to_call(self, deltas: list[Delta]) -> list[Delta]:
        """All of them, or those up to the one call that is wanted."""
        count = next((n for n, delta in enumerate(deltas, 1) if isinstance(delta, ToolCall)), 0)
        if not self._one_call or not count:
            return deltas
        self.ended = True
        return deltas[:count]


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of `text` are the first ones of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
