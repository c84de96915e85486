"""What every gateway is asked and answered, the same for all. Plain data, made once before anything is timed.

An episode is `turns` calls of one conversation, each repeating it and adding the last answer and a new user message.
Its system message is the same in all episodes, its user messages are of that episode alone. Prompts have
`prompt_tokens` ids on average over the turns; every answer has `answer_tokens`, the end-of-turn token included.
"""

from __future__ import annotations

import random
from functools import cached_property
from pathlib import Path

from msgspec import Struct
from tokenizers import Tokenizer

from agentrl.assets import EMBEDDED, resolve_model

FOLLOW_UP_WORDS = 16
END_OF_TURN = "<|im_end|>"


class Sizes(Struct, frozen=True):
    """How large the calls are."""

    prompt_tokens: int = 2000
    answer_tokens: int = 200
    turns: int = 4


class Workload:
    """The texts and ids of one benchmark. The mock engine and the clients make the same from the same sizes."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.tokenizer = Tokenizer.from_file(str(Path(resolve_model(EMBEDDED)) / "tokenizer.json"))
        self._words = _vocabulary()
        per_word = self._ids_in(" ".join(self._words)) / len(self._words)
        growth = self._ids_in(turn_text("user", self.follow_up(0, 1))) + sizes.answer_tokens
        first = max(40, sizes.prompt_tokens - growth * (sizes.turns - 1) // 2)
        self.system = " ".join(self._some(-1, round(first / 2 / per_word)))
        rest = first - self._ids_in(turn_text("system", self.system) + turn_text("user", "Episode 1000000: "))
        self._question_words = max(1, round(rest / per_word))

    def question(self, episode: int) -> str:
        """The first user message of an episode: the part that nothing else shares."""
        return f"Episode {episode}: {' '.join(self._some(episode, self._question_words))}"

    def follow_up(self, episode: int, turn: int) -> str:
        return f"Result {turn}: {' '.join(self._some(episode * 1000 + turn, FOLLOW_UP_WORDS))}"

    @cached_property
    def answer_ids(self) -> list[int]:
        """[answer_tokens], the end-of-turn token last."""
        text = " ".join(self._some(-2, self.sizes.answer_tokens))
        return self.encode(text)[: self.sizes.answer_tokens - 1] + self.encode(END_OF_TURN)

    @cached_property
    def answer(self) -> str:
        """The text of `answer_ids`. ASCII without quotes, so that every JSON writer spells it the same way."""
        return str(self.tokenizer.decode(self.answer_ids[:-1]))

    def prompt_ids(self, episode: int, turn: int) -> list[int]:
        """What the template of the embedded policy makes of an episode up to `turn`, counted from 0."""
        ids = self.encode(turn_text("system", self.system) + turn_text("user", self.question(episode)) + OPENING)
        for later in range(1, turn + 1):
            ids += self.answer_ids + self.encode("\n" + turn_text("user", self.follow_up(episode, later)) + OPENING)
        return ids

    def body(self, episode: int, turn: int, *, more: bytes = b"") -> bytes:
        """The request of an OpenAI client; `more` are further fields, each with a comma before it."""
        messages = [_message("system", self.system), _message("user", self.question(episode))]
        for later in range(1, turn + 1):
            messages += [_message("assistant", self.answer), _message("user", self.follow_up(episode, later))]
        head = f'{{"model":"policy","temperature":1.0,"max_tokens":{self.sizes.answer_tokens},"messages":['
        return f"{head}{','.join(messages)}]".encode() + more + b"}"

    def _some(self, seed: int, count: int) -> list[str]:
        return random.Random(seed).choices(self._words, k=count)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _ids_in(self, text: str) -> int:
        return len(self.encode(text))


OPENING = "<|im_start|>assistant\n"


def turn_text(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}{END_OF_TURN}\n"


def _message(role: str, content: str) -> str:
    return f'{{"role":"{role}","content":"{content}"}}'


def _vocabulary() -> list[str]:
    """2,000 words that look like English and need no escape in JSON."""
    draw = random.Random(0)
    syllables = ["the", "re", "in", "con", "ter", "al", "de", "mo", "ca", "li", "per", "ta", "so", "ing", "un", "be"]
    return ["".join(draw.choices(syllables, k=draw.choice((1, 1, 2, 2, 3)))) for _ in range(2000)]
