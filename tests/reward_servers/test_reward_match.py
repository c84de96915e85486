"""The match service, by hand-made pairs of messages and labels."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.reward.protocol import Item, Score
from agentrl_rewards.match.service import PATTERN_TIMEOUT_S, How, Match


async def score(how: How, text: str, label: Any, **options: Any) -> Score:
    service = Match(how=how, **options)
    (found,) = await service.score([Item(id="a", text=text, task={"options": {"answer": label}})])
    await service.close()
    return found


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("Paris", "Paris", 1.0),
        ("  paris. ", "Paris", 1.0),
        ("The answer is Paris", "Paris", 0.0),
        ("12", 12, 1.0),
        ("", "Paris", 0.0),
        ("Rome", ["Paris", "Rome"], 1.0),
    ],
)
async def test_exact(text: str, label: Any, reward: float) -> None:
    assert (await score("exact", text, label)).reward == reward


async def test_exact_to_the_letter_when_nothing_is_normalised() -> None:
    assert (await score("exact", "paris", "Paris", normalise=False)).reward == 0.0


@pytest.mark.parametrize(("text", "reward"), [("it is 42 km", 1.0), ("it is 43 km", 0.0), ("42KM", 1.0)])
async def test_a_pattern_is_found_anywhere(text: str, reward: float) -> None:
    assert (await score("regex", text, r"\b42\s*km\b")).reward == reward


async def test_a_pattern_that_is_none_or_never_ends_leaves_the_item_unscored() -> None:
    broken = await score("regex", "x", "(")
    assert broken.reward is None
    assert "the pattern '(' is none" in str(broken.error)
    endless = await score("regex", "1," * 60, r"^(.*?,){25}P")
    assert endless.reward is None
    assert f"longer than {PATTERN_TIMEOUT_S:g} s" in str(endless.error)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ('{"n": 1}', 1.0),
        ('{"n": "1"}', 0.0),
        ("no JSON", 0.0),
        ('Here it is:\n```json\n{"n": 3}\n```\nDone.', 1.0),
        ('```\n{"n": 3}\n```\n```\n{}\n```', 0.0),
    ],
)
async def test_json_that_fits_a_schema(text: str, reward: float) -> None:
    assert (await score("json_schema", text, SCHEMA)).reward == reward


async def test_a_schema_that_is_none_leaves_the_item_unscored() -> None:
    found = await score("json_schema", "{}", {"type": "thing"})
    assert found.reward is None
    assert "the label is no JSON schema" in str(found.error)


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("the cat sat", "the cat sat", 1.0),
        ("the cat", "the cat sat", 0.8),  # P 1, R 2/3
        ("the the the", "the cat", 0.4),  # one shared of 3 and of 2
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
    ],
)
async def test_f1_of_words_by_hand(text: str, label: str, reward: float) -> None:
    assert (await score("f1", text, label)).reward == pytest.approx(reward)


async def test_a_task_without_a_label_is_unscored_and_says_what_it_has() -> None:
    service = Match(label="gold")
    (found,) = await service.score([Item(id="a", text="x", task={"options": {"answer": 1}})])
    await service.close()
    assert found.reward is None
    assert found.error == "the task has no option 'gold' (it has answer); put the right answer there"


def test_an_unknown_way_to_compare_is_refused() -> None:
    with pytest.raises(ConfigError, match="match compares by one of exact, regex, json_schema, f1"):
        Match(how="magic")  # type: ignore[arg-type]
