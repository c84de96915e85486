"""Find a hidden word by guessing; the host marks each guess and sometimes lets a letter slip."""

from __future__ import annotations

import re
from typing import Any

import agentrl
from agentrl.env.base import ResetResult, StepResult
from agentrl.env.space import as_action
from agentrl_envs.splits import require_split, split_of
from agentrl_envs.word_game.words import LENGTH, WORDS, marks

MAX_GUESSES = 7
HINT_CHANCE = 0.25

RULES = (
    f"I am thinking of a common English word of {LENGTH} letters. Answer with one guess a message, nothing else. I "
    "mark each letter: + right letter and place, ? in the word but elsewhere, - not in the word. You have "
    f"{MAX_GUESSES} guesses."
)
_WORD = re.compile(rf"[a-z]{{{LENGTH}}}")


class WordGame(agentrl.Env):
    """Reward 1 for the word within seven guesses, else 0. A message that is no word of four letters uses up a guess."""

    secret: str
    guesses: int = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """A word of the split `options["split"]`, or `options["word"]`; `seed` also fixes when a letter slips."""
        super().reset(seed=seed)
        given = options or {}
        split = given.get("split", "train")
        require_split(split, "word_game")
        words = [word for word in WORDS if split_of(word) == split]
        drawn = words[int(self.np_random.integers(len(words)))]
        self.secret = str(given.get("word", drawn)).lower()
        if not _WORD.fullmatch(self.secret):
            raise ValueError(f"options['word'] is {self.secret!r}; give a word of {LENGTH} letters a to z")
        self.guesses = 0
        return [agentrl.user(RULES)], {}

    def step(self, action: agentrl.Message | str) -> StepResult:
        guess = as_action(action).text.strip().strip(".!\"'").lower()
        self.guesses += 1
        if guess == self.secret:
            return [], 1.0, True, False, {}
        if self.guesses >= MAX_GUESSES:
            return [], 0.0, True, False, {}
        return [agentrl.user(self._reply(guess))], 0.0, False, False, {}

    def _reply(self, guess: str) -> str:
        left = f"{MAX_GUESSES - self.guesses} left."
        if not _WORD.fullmatch(guess):
            return f"That is not one word of {LENGTH} letters. {left}"
        reply = f"{guess}: {marks(guess, self.secret)}. {left}"
        if self.np_random.random() < HINT_CHANCE:
            place = int(self.np_random.integers(LENGTH))
            reply += f" Oh, and letter {place + 1} is {self.secret[place]}."
        return reply
