"""The text that was sampled so far, read by steps that wait where there is no more of it.

A step is a generator that yields when it needs text and returns what it found. So a family's grammar is written as if
the whole text were there, and how it is cut into feeds cannot matter: no step decides on less than it has to see.

Invariant: a step leaves at most the beginning of one mark unread when it waits, so all feeding is linear. Text is kept
for going back only between `keep` and `drop`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Literal, TypeVar

from agentrl.gateway.parsers.json_end import JsonEnd

T = TypeVar("T")
Steps = Generator[None, None, T]

SPACE = re.compile(r"[ \t\r\n]*")
NAME = re.compile(r"""[^\s<>{}\[\]"'`;,|｜]*""")
"""What a function's name is made of where nothing but a mark ends it."""

JsonResult = Literal["whole", "bad", "cut"]


class Marks:
    """Texts to look for. None is the beginning of another."""

    def __init__(self, *texts: str) -> None:
        self.pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self.longest = max(map(len, texts), default=0)
        self.beginnings = frozenset(text[:size] for text in texts for size in range(len(text)))

    def held(self, text: str, start: int) -> int:
        """How many characters at the end of text[start:] may begin a mark."""
        for size in range(min(self.longest - 1, len(text) - start), 0, -1):
            if text[-size:] in self.beginnings:
                return size
        return 0


NO_MARKS = Marks()


class Source:
    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # what is before it in _text was read
        self._base = 0  # position of _text in all that was fed
        self._kept_from: int | None = None
        self._kept: list[str] = []  # the text between _kept_from and _base
        self.ended = False

    @property
    def position(self) -> int:
        """Characters read."""
        return self._base + self._at

    @property
    def fed(self) -> int:
        return self._base + len(self._text)

    def add(self, text: str) -> None:
        if self.ended:
            raise ValueError(f"{len(text)} characters were fed after finish(); make a new parser for each answer")
        if self._kept_from is not None:
            self._kept.append(self._text[max(0, self._kept_from - self._base) : self._at])
        self._text = self._text[self._at :] + text
        self._base += self._at
        self._at = 0

    def keep(self) -> int:
        """The position now, to which `back` may go until `drop`."""
        if self._kept_from is None:
            self._kept_from = self.position
        return self.position

    def drop(self) -> None:
        self._kept_from = None
        self._kept.clear()

    def taken(self, start: int) -> str:
        """What was read since `start`, a position since `keep`."""
        if start >= self._base or self._kept_from is None:
            return self._text[start - self._base : self._at]
        return "".join(self._kept)[start - self._kept_from :] + self._text[: self._at]

    def back(self, start: int) -> None:
        """Unreads what was read since `start`, a position since `keep`."""
        if start < self._base and self._kept_from is not None:
            self._text = "".join(self._kept) + self._text
            self._base = self._kept_from
            self._kept.clear()
        self._at = start - self._base

    def more(self) -> Steps[bool]:
        """Waits for text. False when there is none to come."""
        if self.ended:
            return False
        yield
        return True

    def peek(self) -> Steps[str]:
        """The next character, unread; "" at the end."""
        while self._at == len(self._text):
            if not (yield from self.more()):
                return ""
        return self._text[self._at]

    def until(self, marks: Marks, sink: Callable[[str], object]) -> Steps[str | None]:
        """Reads up to the first of `marks` and that too; what is before it goes to `sink`. None: there was none."""
        while True:
            found = marks.pattern.search(self._text, self._at)
            if found:
                sink(self._text[self._at : found.start()])
                self._at = found.end()
                return found[0]
            end = len(self._text) - (0 if self.ended else marks.held(self._text, self._at))
            sink(self._text[self._at : end])
            self._at = end
            if not (yield from self.more()):
                return None

    def one_of(self, marks: Marks) -> Steps[str | None]:
        """Reads the mark that comes next. None, and nothing is read, when it is none of them."""
        while True:
            found = marks.pattern.match(self._text, self._at)
            if found:
                self._at = found.end()
                return found[0]
            if self._text[self._at : self._at + marks.longest] not in marks.beginnings:
                return None
            if not (yield from self.more()):
                return None

    def run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Reads the characters that come next and are all of one kind; `pattern` is that kind, any number of them."""
        pieces: list[str] = []
        while True:
            if found := pattern.match(self._text, self._at):
                pieces.append(found[0])
                self._at = found.end()
            if self._at < len(self._text) or not (yield from self.more()):
                return "".join(pieces)

    def space(self) -> Steps[str]:
        return (yield from self.run(SPACE))

    def json(self) -> Steps[JsonResult]:
        """Reads a JSON object or list. It is cut when the text ended in it; what was read of a bad one is open.

        A family reads the text of a bad one again, for calls in it; not that of a cut or a whole one, whose strings may
        spell anything.
        """
        end = JsonEnd()
        while True:
            self._at = end.take(self._text, self._at)
            if end.done:
                return "whole"
            if end.bad:
                return "bad"
            if not (yield from self.more()):
                return "cut"

    def payload(self, ends: Marks) -> Steps[tuple[str, str | None] | None]:
        """Reads what is before the next of `ends` (None: before the end of the text), and that mark.

        Marks in the strings of a JSON object are text. None: it begins a JSON object that the text's end cuts off.
        Must be called between `keep` and `drop`.
        """
        begin = self.position
        yield from self.space()
        if (yield from self.peek()) == "{":
            result = yield from self.json()
            if result == "cut":
                return None
            if result == "bad":
                self.back(begin)
        mark = yield from self.until(ends, _ignore)
        text = self.taken(begin)
        return text[: len(text) - len(mark or "")].strip(" \t\r\n"), mark


def _ignore(text: str) -> None:
    pass
