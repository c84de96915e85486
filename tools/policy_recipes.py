"""The embedded policies: what each is taught, for how long, and how its model card begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policy_skills import CALCULATOR, PYTHON_CODE, SQL, Skill
from policy_training import ExampleSource, Stage, copies, in_turn, transcripts
from transformers import PreTrainedTokenizerFast

from agentrl.assets import CODER, EMBEDDED
from agentrl_envs.python_code import easy as code_words
from agentrl_envs.sql import easy as sql_words
from agentrl_envs.sql.question import PEOPLE

DIGITS = "0123456789"


@dataclass(frozen=True)
class Recipe:
    """How one policy is built. `steps` are those of its three stages; batches hold all skills alike."""

    model: str  # its name in agentrl.assets
    skills: tuple[Skill, ...]
    vocab_size: int
    copied: Sequence[str]  # what random strings to copy are made of
    steps: tuple[int, int, int]  # copying, correct episodes, mixed episodes
    target: tuple[float, float]  # share of held-out tasks solved at temperature 1, of each skill
    title: str
    knows: str
    command: str

    def stages(self, tokenizer: PreTrainedTokenizerFast) -> list[Stage]:
        copying, correct, mixed = self.steps
        return [
            Stage("copying", copying, 3e-3, 64, copies(tokenizer, self.copied)),
            Stage("correct episodes", correct, 2e-3, 32, self._episodes(tokenizer, warm_start=False)),
            Stage("mixed episodes", mixed, 1e-3, 32, self._episodes(tokenizer, warm_start=True)),
        ]

    def _episodes(self, tokenizer: PreTrainedTokenizerFast, *, warm_start: bool) -> ExampleSource:
        return in_turn(
            [transcripts(tokenizer, skill, skill.warm_start if warm_start else skill.correct) for skill in self.skills]
        )


TINY = Recipe(
    model=EMBEDDED,
    skills=(CALCULATOR,),
    vocab_size=512,
    copied=DIGITS * 4 + "+-*",
    steps=(300, 500, 300),
    target=(0.33, 0.45),
    title="The embedded policy",
    knows="""It knows one thing: to answer "What is 123*45?" by
calling `calculate(expression)` and copying the result.""",
    command="make policy",
)

_WORDS = (*PEOPLE, *sql_words.TABLES, *sql_words.NUMBERS, *code_words.LISTS, *code_words.STRINGS)

TINY_CODER = Recipe(
    model=CODER,
    skills=(SQL, PYTHON_CODE),
    vocab_size=512,
    copied=(*DIGITS * 4, *(f" {word}" for word in _WORDS)),
    steps=(300, 700, 400),
    target=(0.28, 0.50),
    title="The second embedded policy",
    knows="""It knows two things: to answer "In pets, what is the age of Rex?"
by querying `sql(query)` and copying the result, and to write "f(x): add 3 to x, then multiply by 7" in Python.""",
    command="make policy-coder",
)

RECIPES = {recipe.model: recipe for recipe in (TINY, TINY_CODER)}
