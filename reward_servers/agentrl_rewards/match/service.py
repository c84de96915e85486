"""Compares the policy's last message with the task's label: as text, by a pattern, a JSON schema, or shared words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import jsonschema
import regex

from agentrl.errors import ConfigError
from agentrl.reward.protocol import Item, Score
from agentrl.reward.service import CannotScore, ItemService
from agentrl_rewards.labels import label_of

How = Literal["exact", "regex", "json_schema", "f1"]
PATTERN_TIMEOUT_S = 2.0
"""A pattern that backtracks for longer makes its item unscored, not its service slow."""


class Match(ItemService):
    """The last message against the task's label: exact, regex, json_schema or f1.

    `how`: `exact` (after `normalise`), `regex` (the label is a pattern to be found), `json_schema` (the message, or
    its last fenced block, is JSON that fits the label), `f1` (words shared with the label, as SQuAD counts them).
    `label` names the task's option with the right answer; a list of labels counts by the best of them.
    """

    def __init__(self, *, how: How = "exact", label: str = "answer", normalise: bool = True) -> None:
        super().__init__()
        if how not in _COMPARE:
            raise ConfigError(f"how = {how!r}; match compares by one of {', '.join(_COMPARE)}")
        self._compare = _COMPARE[how]
        self._label = label
        self._normalise = normalise
        self._listed = how != "json_schema"

    def score_item(self, item: Item) -> Score | float:
        label = label_of(item, self._label)
        labels = label if isinstance(label, list) and self._listed else [label]
        if not labels:
            raise CannotScore(f"the task's option {self._label!r} is an empty list; give at least one right answer")
        return max(self._compare(item.text, one, self._normalise) for one in labels)


def exact(text: str, label: Any, normalise: bool) -> float:
    """1 when both are the same text."""
    wanted = label if isinstance(label, str) else json.dumps(label)
    return float(_plain(text) == _plain(wanted) if normalise else text == wanted)


def pattern(text: str, label: Any, normalise: bool) -> float:
    """1 when the pattern is found in the text. Raises CannotScore for what is no pattern, or takes too long."""
    try:
        flags = regex.IGNORECASE if normalise else 0
        return float(regex.search(str(label), text, flags=flags, timeout=PATTERN_TIMEOUT_S) is not None)
    except regex.error as error:
        raise CannotScore(f"the pattern {label!r} is none: {error}") from error
    except TimeoutError as error:
        raise CannotScore(f"the pattern {label!r} was searched for longer than {PATTERN_TIMEOUT_S:g} s") from error


def schema(text: str, label: Any, normalise: bool) -> float:
    """1 when the text's JSON fits the schema. Raises CannotScore for what is no schema."""
    try:
        validator = jsonschema.validators.validator_for(label, jsonschema.Draft202012Validator)
        validator.check_schema(label)
    except (jsonschema.SchemaError, TypeError) as error:
        raise CannotScore(f"the label is no JSON schema: {error}") from error
    try:
        value = json.loads(_fenced(text) if normalise else text)
    except ValueError:
        return 0.0
    return float(validator(label).is_valid(value))


def shared_words(text: str, label: Any, normalise: bool) -> float:
    """2PR/(P+R) over the words of both, each as often as it is there (SQuAD, Rajpurkar et al. 2016)."""
    said, wanted = (_words(value, normalise) for value in (text, str(label)))
    common = sum((Counter(said) & Counter(wanted)).values())
    if not said or not wanted:
        return float(said == wanted)
    return 2 * common / (len(said) + len(wanted))


_COMPARE: dict[str, Callable[[str, Any, bool], float]] = {
    "exact": exact,
    "regex": pattern,
    "json_schema": schema,
    "f1": shared_words,
}


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .!\"'")


def _words(text: str, normalise: bool) -> list[str]:
    return regex.findall(r"\w+", text.casefold()) if normalise else text.split()


def _fenced(text: str) -> str:
    """The last fenced block, or the whole text when there is none."""
    blocks = regex.findall(r"```(?:json)?\s*\n(.*?)```", text, flags=regex.DOTALL, timeout=PATTERN_TIMEOUT_S)
    return blocks[-1] if blocks else text
