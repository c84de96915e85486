"""Where a JSON object or list ends in text that comes in pieces.

It refuses at the first character that JSON does not allow. That bounds the work on hostile text, too: two readings of
one text that began at different places cannot both go on for long, because one's strings are the other's structure.
"""

from __future__ import annotations

import re
from enum import Enum, auto

_IN_STRING = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[-+.0-9a-zA-Z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_HEX = frozenset("0123456789abcdefABCDEF")


class _Next(Enum):
    """What may come next."""

    VALUE = auto()
    FIRST_ITEM = auto()  # a value, or the end of the list
    FIRST_KEY = auto()  # a key, or the end of the object
    KEY = auto()
    COLON = auto()
    COMMA = auto()  # or the end of the object or list
    STRING = auto()  # its inside
    ESCAPE = auto()
    HEX = auto()
    WORD = auto()  # the inside of a number, true, false or null


class JsonEnd:
    """One per value. `take` until `done` or `bad`."""

    def __init__(self) -> None:
        self.done = False
        self.bad = False
        self._next = _Next.VALUE
        self._closers: list[str] = []  # of the objects and lists that are open
        self._after_string = _Next.COMMA
        self._hex_left = 0
        self._word: list[str] = []

    def take(self, text: str, at: int) -> int:
        """Reads text[at:] and returns the position after what was read: the value's end when `done`."""
        while at < len(text) and not self.done and not self.bad:
            if self._next is _Next.STRING:
                at = self._string(text, at)
            elif self._next is _Next.WORD:
                at = self._scalar(text, at)
            elif self._next in (_Next.ESCAPE, _Next.HEX):
                self._escape(text[at])
                at += 1
            else:
                found = _SPACE.match(text, at)
                at = found.end() if found and self._closers else at
                if at < len(text):
                    at += self._structure(text[at])
        return at

    def _string(self, text: str, at: int) -> int:
        found = _IN_STRING.match(text, at)
        at = found.end() if found else at
        if at == len(text):
            return at
        if text[at] == '"':
            self._next = self._after_string
        elif text[at] == "\\":
            self._next = _Next.ESCAPE
        else:
            self.bad = True
        return at + 1

    def _escape(self, char: str) -> None:
        if self._next is _Next.HEX:
            self.bad = char not in _HEX
            self._hex_left -= 1
            self._next = _Next.HEX if self._hex_left else _Next.STRING
        elif char == "u":
            self._next, self._hex_left = _Next.HEX, 4
        else:
            self.bad = char not in '"\\/bfnrt'
            self._next = _Next.STRING

    def _scalar(self, text: str, at: int) -> int:
        found = _WORD.match(text, at)
        end = found.end() if found else at
        self._word.append(text[at:end])
        if end < len(text):
            self.bad = _SCALAR.fullmatch("".join(self._word)) is None
            self._word.clear()
            self._next = _Next.COMMA
        return end

    def _structure(self, char: str) -> int:
        """How many characters were read: 1, or 0 where a number or a word begins."""
        expected = self._next
        if expected in (_Next.FIRST_KEY, _Next.KEY) and char == '"':
            self._next, self._after_string = _Next.STRING, _Next.COLON
        elif expected is _Next.COLON and char == ":":
            self._next = _Next.VALUE
        elif expected is _Next.COMMA and char == ",":
            self._next = _Next.KEY if self._closers[-1] == "}" else _Next.VALUE
        elif expected in (_Next.COMMA, _Next.FIRST_KEY, _Next.FIRST_ITEM) and char == self._closers[-1]:
            self._closers.pop()
            self._next = _Next.COMMA
            self.done = not self._closers
        elif expected in (_Next.VALUE, _Next.FIRST_ITEM):
            return self._value(char)
        else:
            self.bad = True
        return 1

    def _value(self, char: str) -> int:
        if char == "{":
            self._closers.append("}")
            self._next = _Next.FIRST_KEY
        elif char == "[":
            self._closers.append("]")
            self._next = _Next.FIRST_ITEM
        elif not self._closers:
            self.bad = True
        elif char == '"':
            self._next, self._after_string = _Next.STRING, _Next.COMMA
        elif _WORD.fullmatch(char):
            self._next = _Next.WORD
            return 0
        else:
            self.bad = True
        return 1
