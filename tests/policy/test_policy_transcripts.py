"""Written SQL and Python episodes: the right ones are right, the wrong ones wrong, on training problems only."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.gateway.parsers import FAMILIES, read
from agentrl.messages import Message
from agentrl_envs.python_code import transcripts as code
from agentrl_envs.python_code.tasks import problem as code_problem
from agentrl_envs.sql import transcripts as sql
from agentrl_envs.sql.env import Sql
from agentrl_envs.sql.question import Question
from agentrl_envs.sql.tasks import is_right, split_of

SEEDS = st.integers(min_value=0, max_value=2**53)
SQL_TOOLS = Sql().tools


def written(module, seed, behaviour):
    return module.transcript(random.Random(seed), {behaviour: 1.0})


def sql_reward(transcript) -> float | None:
    """What the environment gives for the assistant's turns, as the parser reads them."""
    env = Sql()
    env._database, env.asked = transcript.problem.open(), transcript.problem
    reward = None
    for message in transcript.messages:
        if message.role == "assistant":
            observed, reward, ended, *_ = env.step(Message(read(FAMILIES["hermes"], message.text, SQL_TOOLS)))
        elif message.role == "tool":
            assert not ended
            assert [each.text for each in observed] == [message.text], "the tool answers as it was written down"
    assert ended
    env.close()
    return reward


@given(SEEDS)
def test_a_correct_sql_transcript_is_rewarded_and_its_tool_answers_are_the_environments(seed):
    assert sql_reward(written(sql, seed, "correct")) == 1.0


@pytest.mark.parametrize("behaviour", ["guess", "malformed", "copy"])
def test_other_sql_transcripts_are_not_rewarded(behaviour):
    """A guess is right now and then: of 50, two at most."""
    rewards = [sql_reward(written(sql, seed, behaviour)) for seed in range(50)]
    assert sum(rewards) <= 2


def test_a_rejected_call_is_answered_as_the_environment_answers_it():
    rewards = [sql_reward(written(sql, seed, "rejected")) for seed in range(100)]
    assert 10 <= sum(rewards) <= 50, "three in ten try again and are right"


def test_a_wrong_query_mostly_misses():
    """It flips a comparison, drops a condition or counts instead, and copies what comes back."""
    drawn = [written(sql, seed, "query") for seed in range(100)]
    assert sum(sql_reward(each) for each in drawn) <= 10
    assert all(is_right(each.messages[-1].text, each.messages[-2].text) for each in drawn)


@given(SEEDS, st.sampled_from(sorted(sql.WARM_START)))
def test_sql_transcripts_are_on_training_problems(seed, behaviour):
    asked = written(sql, seed, behaviour).problem
    assert split_of(Question(asked.tables, asked.question, asked.query)) == "train"


def passes(asked, answer: str) -> bool:
    """Our own transcripts are code that we trust, so they run here."""
    namespace = {}
    try:
        exec(answer, namespace)
        return all(eval(test.call, namespace) == test.expected for test in asked.tests)
    except Exception:
        return False


@given(SEEDS)
def test_a_correct_code_transcript_passes_its_tests(seed):
    drawn = written(code, seed, "correct")
    assert passes(drawn.problem, drawn.messages[-1].text)
    assert drawn.messages[0].text == drawn.problem.prompt


@pytest.mark.parametrize("behaviour", sorted(set(code.WARM_START) - {"correct"}))
def test_other_code_transcripts_fail(behaviour, capsys):
    drawn = [written(code, seed, behaviour) for seed in range(100)]
    assert sum(passes(each.problem, each.messages[-1].text) for each in drawn) <= 3


def test_code_transcripts_are_on_training_problems():
    held_out = {code_problem(seed, "eval").prompt for seed in range(3000)}
    assert not held_out & {written(code, seed, "correct").problem.prompt for seed in range(3000)}


@pytest.mark.parametrize("module", [sql, code])
def test_transcripts_of_every_skill_are_repeatable_and_mix_as_told(module):
    """400 draws of a mix hold each behaviour, about as often as its weight says."""
    drawn = [module.transcript(rng, module.WARM_START) for rng in [random.Random(0)] for _ in range(400)]
    again = [module.transcript(rng, module.WARM_START) for rng in [random.Random(0)] for _ in range(400)]
    assert [each.messages for each in drawn] == [each.messages for each in again]
    for behaviour, share in module.WARM_START.items():
        assert abs(sum(each.behaviour == behaviour for each in drawn) / 400 - share) < 0.1


def test_a_query_with_quotes_is_written_as_json():
    parsed = read(FAMILIES["hermes"], sql.tool_call('SELECT "a" FROM b\n'), SQL_TOOLS)
    assert json.loads(parsed["tool_calls"][0]["function"]["arguments"]) == {"query": 'SELECT "a" FROM b\n'}
