"""What is read from a file: every complaint names its line, and what is left out is counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.errors import ConfigError
from agentrl.gateway.render import Renderer
from agentrl.messages import assistant, user, written_out
from agentrl.train.supervised.batches import batches, steps_of
from agentrl.train.supervised.config import AnswersConfig, PairsConfig, TranscriptsConfig
from agentrl.train.supervised.dataset import fit, load_answer_pairs, load_scored_pairs, load_transcripts, split
from agentrl.train.supervised.items import Item
from agentrl.types import TrainRow

MODEL = resolve_model(EMBEDDED)


def conversation(question: str, answer: str, **more: Any) -> dict[str, Any]:
    return {"messages": [user(question), assistant(answer)], **more}


def pair(question: str, chosen: str, rejected: str) -> dict[str, Any]:
    return {"prompt": question, "chosen": chosen, "rejected": rejected}


@pytest.fixture
def written(tmp_path: Path):
    def write(*lines: Any, name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return path

    return write


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "a line is one JSON object, not list"),
        ({"message": []}, r"unknown \['message'\]; a line has messages, tools"),
        ({"messages": []}, "messages is .*at least one"),
        ({"messages": [{"role": "robot", "content": "a"}]}, r"messages\[0\] is .* a message has a role of system, dev"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\].content is 3"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            r"messages\[0\].tool_calls is .* name and arguments",
        ),
        (conversation("a", "b", tools="x"), "tools is 'x'"),
        ({"messages": [{"role": "user", "content": "a", "train": "no"}]}, "is true or false"),
        ({"messages": [assistant("b")]}, "there are no messages to render"),
    ],
)
def test_a_wrong_conversation_is_refused_with_its_line(written: Any, line: Any, message: str) -> None:
    path = written(conversation("a", "b"), "", line)
    with pytest.raises(ConfigError, match=rf"data.jsonl:3.*{message}"):
        load_transcripts(TranscriptsConfig(train=path), MODEL, 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "a", "chosen": "b"}, "rejected is None"),
        (pair("a", "b", "b"), "chosen and rejected are the same answer"),
        ({**pair("a", "b", "c"), "messages": [user("a")]}, 'has "prompt", or "messages"'),
        ({"prompt": "a", "chosen": [user("b")], "rejected": "c"}, "chosen ends with a message of 'user'"),
    ],
)
def test_a_wrong_pair_is_refused_with_its_line(written: Any, line: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"data.jsonl:1.*{message}"):
        load_answer_pairs(AnswersConfig(train=written(line)), MODEL, 0)


def test_the_answers_of_a_pair_are_trained_and_their_prompt_is_not(written: Any) -> None:
    dataset = load_answer_pairs(AnswersConfig(train=written(pair("What is 1+1?", "2", "11"))), MODEL, 0)
    renderer = Renderer.load(MODEL)
    (item,) = dataset.train
    said = [[t for t, on in zip(row.token_ids, row.loss_mask, strict=True) if on] for row in item.rows]
    assert [renderer.spelled(ids) for ids in said] == ["2<|im_end|>", "11<|im_end|>"]
    assert item.rows[0].token_ids[: -len(said[0])] == renderer.first([user("What is 1+1?")])


def test_a_pair_to_be_scored_is_two_whole_conversations_read_at_their_last_token(written: Any) -> None:
    """Encoded as the reward service encodes what it scores: calls written out, no tools."""
    call = {"id": "a", "type": "function", "function": {"name": "calculate", "arguments": {"expression": "1+1"}}}
    line = {
        "messages": [user("What is 1+1?")],
        "chosen": [{"role": "assistant", "content": None, "tool_calls": [call]}],
    }
    dataset = load_scored_pairs(PairsConfig(train=written({**line, "rejected": "2", "tools": []})), MODEL, 0)
    text = [Renderer.load(MODEL).spelled(row.token_ids) for row in dataset.train[0].rows]
    called = '{"name": "calculate", "arguments": "{\\"expression\\": \\"1+1\\"}"}'
    assert text[0].endswith(f"<|im_start|>assistant\n{called}<|im_end|>\n")
    assert text[1].endswith("<|im_start|>assistant\n2<|im_end|>\n")
    assert [row.loss_mask.index(1) for row in dataset.train[0].rows] == [
        len(row.token_ids) - 1 for row in dataset.train[0].rows
    ]
    assert written_out(assistant("4"))["content"] == "4"


def row(length: int, trained: range) -> TrainRow:
    mask = [int(at in trained) for at in range(length)]
    zeros = [0.0] * length
    return TrainRow(session_id="s", token_ids=[1] * length, loss_mask=mask, logprobs=zeros, advantages=zeros)


def test_rows_that_are_too_long_are_left_out_cut_or_refused_and_counted() -> None:
    items = [Item("a", "f:1", (row(4, range(2, 4)),)), Item("b", "f:2", (row(9, range(3, 9)),))]
    items += [Item("c", "f:3", (row(9, range(7, 9)),))]  # nothing of it is left to train
    dropped, cut = Counter[str](), Counter[str]()
    assert [item.key for item in fit(items, 5, "drop", dropped)] == ["a"]
    kept = list(fit(items, 5, "cut", cut))
    assert [(item.key, item.rows[0].loss_mask) for item in kept] == [("a", [0, 0, 1, 1]), ("b", [0, 0, 0, 1, 1])]
    assert (dropped, cut) == ({"too_long": 2}, {"cut": 1, "too_long": 1})
    with pytest.raises(ConfigError, match="f:2: a row has 9 tokens, the limit is 5"):
        list(fit(items, 5, "refuse", Counter()))


@pytest.mark.parametrize(("limit", "kept"), [(None, [7, 8, 9]), (8, [7, 8])])
def test_a_row_as_long_as_the_limit_is_kept_and_without_one_every_row_is(limit: int | None, kept: list[int]) -> None:
    """Case 47."""
    items = [Item(str(length), "f:1", (row(length, range(1, length)),)) for length in (7, 8, 9)]
    left_out = Counter[str]()
    assert [len(item.rows[0].token_ids) for item in fit(items, limit, "drop", left_out)] == kept
    assert left_out.total() == 3 - len(kept)


@pytest.mark.parametrize("limit", [-1, 0])
def test_a_limit_that_no_row_could_keep_is_refused(written: Any, limit: int) -> None:
    """Case 47: it would leave out everything."""
    with pytest.raises(ValueError, match=r"max_tokens\n.*greater than or equal to 2"):
        TranscriptsConfig(train=written(conversation("a", "b")), max_tokens=limit)


def test_the_models_own_context_is_the_limit_and_more_is_refused(written: Any) -> None:
    path = written(conversation("a", "b" * 5000), conversation("c", "d"))
    assert load_transcripts(TranscriptsConfig(train=path), MODEL, 0).left_out == {"too_long": 1}
    with pytest.raises(ConfigError, match=r"data\.max_tokens = 1000000 is more than the model's context"):
        load_transcripts(TranscriptsConfig(train=path, max_tokens=1_000_000), MODEL, 0)


def test_lines_of_one_prompt_are_held_out_together(written: Any) -> None:
    """Five prompts, twice each: a fifth of the prompts is one, and both its lines."""
    lines = [conversation(f"q{at % 5}", f"a{at}") for at in range(10)]
    dataset = load_transcripts(TranscriptsConfig(train=written(*lines), eval_fraction=0.2), MODEL, 0)
    assert (len(dataset.train), len(dataset.held_out)) == (8, 2)
    assert len({item.key for item in dataset.held_out}) == 1
    assert not {item.key for item in dataset.train} & {item.key for item in dataset.held_out}


def test_what_is_held_out_depends_on_the_seed_and_not_on_the_order() -> None:
    items = [Item(str(at), "", ()) for at in range(20)]
    held_out = [{item.key for item in split(order, 0.25, 7)[1]} for order in (items, items[::-1])]
    assert held_out[0] == held_out[1]
    assert len(held_out[0]) == 5
    assert {item.key for item in split(items, 0.25, 8)[1]} != held_out[0]


def test_data_of_which_nothing_is_left_ends_the_command(written: Any) -> None:
    path = written(conversation("a", "b"))
    config = TranscriptsConfig(train=path, roles=("tool",))
    with pytest.raises(ConfigError, match=r"there is nothing to learn from in data\.train.*nothing_trained: 1"):
        load_transcripts(config, MODEL, 0)


def test_every_pass_has_every_item_once_in_an_order_of_its_own() -> None:
    found = list(batches(list(range(10)), batch_size=4, epochs=2, seed=3))
    assert [len(batch) for _, batch in found] == [4, 4, 2, 4, 4, 2]
    passes = [[item for _, batch in found[start : start + 3] for item in batch] for start in (0, 3)]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(10))
    assert passes[0] != passes[1]
    assert [epoch for epoch, _ in found] == pytest.approx([0.4, 0.8, 1.0, 1.4, 1.8, 2.0])
    assert found == list(batches(list(range(10)), batch_size=4, epochs=2, seed=3))


def test_steps_are_those_of_all_passes_or_the_bound() -> None:
    assert steps_of(10, batch_size=4, epochs=2, at_most=None) == 6
    assert steps_of(10, batch_size=4, epochs=2, at_most=5) == 5
