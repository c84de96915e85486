"""The words of the game, how a guess is marked, and which words are held out."""

from __future__ import annotations

from collections import Counter
from importlib import resources

LENGTH = 4

WORDS: tuple[str, ...] = tuple((resources.files(__package__) / "words.txt").read_text("utf-8").split())


def marks(guess: str, secret: str) -> str:
    """One mark a letter: `+` right place, `?` elsewhere in the word, `-` not in it (as often as it was guessed)."""
    left = Counter(letter for letter, other in zip(secret, guess, strict=True) if letter != other)
    found = []
    for letter, other in zip(guess, secret, strict=True):
        if letter == other:
            found.append("+")
        elif left[letter]:
            left[letter] -= 1
            found.append("?")
        else:
            found.append("-")
    return "".join(found)
