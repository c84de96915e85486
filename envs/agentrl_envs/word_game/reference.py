"""A player who never guesses a word that the marks rule out: from the conversation so far to the next guess."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from agentrl.messages import Message, assistant
from agentrl_envs.word_game.words import WORDS, marks

_MARKED = re.compile(r"([a-z]+): ([+?-]+)\.")
_SLIP = re.compile(r"letter (\d) is ([a-z])\.")


def reference(messages: Sequence[Message]) -> Message:
    """The guess that leaves the fewest words on average, candidates first. Raises ValueError when no word is left."""
    heard = " ".join(message.text for message in messages[1:] if message.role == "user")
    marked = _MARKED.findall(heard)
    slips = [(int(place) - 1, letter) for place, letter in _SLIP.findall(heard)]
    left = [
        word
        for word in WORDS
        if all(marks(guess, word) == said for guess, said in marked)
        and all(word[place] == letter for place, letter in slips)
    ]
    if not left:
        raise ValueError("no word of the list fits the marks; the secret comes from a task of your own")
    if not marked:
        return assistant("lane")  # what the search below gives on the whole list, without the wait
    choices = left if len(left) <= 2 else WORDS
    return assistant(min(choices, key=lambda guess: (_expected_left(guess, left), guess not in left, guess)))


def _expected_left(guess: str, left: Sequence[str]) -> int:
    """The sum of squares of how many words each answer leaves: proportional to the expectation."""
    return sum(count * count for count in Counter(marks(guess, word) for word in left).values())
