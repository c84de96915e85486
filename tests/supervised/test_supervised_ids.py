"""Conversations become ids as the gateway would have recorded them, and exactly the chosen words are trained."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_builders import HOISTS_SYSTEM, ROLE_MARKERS_END_TURNS, STRIPS_THINK, WEATHER, ids, renderer
from hypothesis import given
from hypothesis import strategies as st
from template_families import FAMILIES, TOOL, TemplateFamily

from agentrl.gateway.template import RenderError
from agentrl.messages import Message, assistant, system, tool, user
from agentrl.train.supervised.transcripts import LabelledIds, rows_of

CALL = {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
TURNS = [user("hello"), assistant("the answer"), user("and now?"), assistant(None, tool_calls=[CALL])]
TURNS += [tool("sunny", tool_call_id="abc123def"), assistant("hello world")]


def labelled(
    messages: list[Message],
    template: str | None = None,
    *,
    roles: Any = ("assistant",),
    untrained: tuple[int, ...] = (),
) -> list[LabelledIds]:
    of = renderer(template) if template else renderer()
    return rows_of(of, messages, [], trained=[at not in untrained for at in range(len(messages))], roles=roles)


def trained_text(row: LabelledIds) -> list[str]:
    """The trained stretches of a row, spelled."""
    stretches: list[list[int]] = [[]]
    for token_id, on in zip(row.token_ids, row.loss_mask, strict=True):
        if on:
            stretches[-1].append(token_id)
        elif stretches[-1]:
            stretches.append([])
    return [renderer().spelled(stretch) for stretch in stretches if stretch]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_familys_answers_are_trained_and_nothing_else(family: TemplateFamily) -> None:
    """What the family's models sample, as somebody else wrote it down; without a thought where they think."""
    messages = [Message(message) for message in TURNS]
    variables = {"enable_thinking": False} if family.name == "qwen3" else family.variables
    (row,) = rows_of(family.renderer, messages, [TOOL], trained=[True] * len(messages), variables=variables)
    trained = [token_id for token_id, on in zip(row.token_ids, row.loss_mask, strict=True) if on]
    (before, behind), (opening, closing) = family.says, family.calls
    city = "Rome" if family.call_value else '{"city": "Rome"}'
    says = [f"{before}{text}{behind}" for text in ("the answer", "hello world")]
    assert squeezed(family.decoded(trained)) == squeezed(f"{says[0]}{opening}{city}{closing}{says[1]}")


def squeezed(text: str) -> str:
    """JSON is written with or without blanks."""
    return text.replace(" ", "")


def test_a_row_is_what_the_template_writes_up_to_the_end_of_the_last_answer() -> None:
    (row,) = labelled(TURNS[:4])
    whole = renderer().spelled(renderer().written(TURNS[:4]))
    assert renderer().spelled(row.token_ids) == whole.removesuffix("\n")
    assert trained_text(row)[0] == "the answer<|im_end|>"


def test_each_piece_is_encoded_by_itself_as_serving_does_it() -> None:
    """The prompt's ids, the answer's, and what follows: not those of the whole text."""
    (row,) = labelled(TURNS[:2])
    assert row.token_ids == [*renderer().first(TURNS[:1]), *ids("the answer<|im_end|>")]


def test_text_cannot_forge_tokens() -> None:
    """Invariant 13: the marker in the user's words, and in the answer's, is text of several tokens."""
    (row,) = labelled([user("a<|im_end|>b"), assistant("c<|im_end|>d")])
    end = ids("<|im_end|>")[0]
    assert row.token_ids.count(end) == 2  # of the two turns
    assert trained_text(row) == ["c<|im_end|>d<|im_end|>"]


WORDS = st.text(st.sampled_from("ab <>|im_endstart\n7"), max_size=12) | st.sampled_from(
    ["<|im_end|>", "x<|im_start|>assistant\n", "<tool_call>", "zqnextmark", "xzzx", "qyyq"]
)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_whatever_is_said_the_answers_are_trained_whole_and_once(turns: list[tuple[str, str]]) -> None:
    """Spellings of control tokens, our own marks and newlines at the edges included; and the users' words likewise."""
    messages = [said for question, answer in turns for said in (user(question), assistant(answer))]
    (row,) = labelled(messages)
    trained = [token_id for token_id, on in zip(row.token_ids, row.loss_mask, strict=True) if on]
    assert renderer().spelled(trained) == "".join(f"{answer}<|im_end|>" for _, answer in turns)
    assert row.token_ids.count(ids("<|im_end|>")[0]) == len(messages)
    assert renderer().spelled(row.token_ids) + "\n" == "".join(
        f"<|im_start|>{message.role}\n{message.text}<|im_end|>\n" for message in messages
    )


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3))
def test_whatever_users_say_is_trained_with_them(turns: list[tuple[str, str]]) -> None:
    """A token may hold a piece of the template's header besides: then the words' tokens are all of it and more."""
    messages = [said for question, answer in turns for said in (user(question), assistant(answer))]
    rows = labelled(messages, roles=("user",))
    trained = [t for row in rows for t, on in zip(row.token_ids, row.loss_mask, strict=True) if on]
    said = renderer().spelled(trained).split("<|im_end|>")
    assert "".join(said).replace("\n", "") == "".join(question for question, _ in turns).replace(
        "<|im_end|>", ""
    ).replace("\n", "")


def test_tools_are_in_the_prompt_and_not_trained() -> None:
    (row,) = rows_of(renderer(), TURNS[:2], [WEATHER], trained=[True, True])
    assert '"weather"' in renderer().spelled(row.token_ids)
    assert trained_text(row) == ["the answer<|im_end|>"]


def test_a_message_that_is_not_to_be_trained_is_context() -> None:
    (row,) = labelled(TURNS, untrained=(1,))
    assert trained_text(row)[-1] == "hello world<|im_end|>"
    assert not any("the answer" in text for text in trained_text(row))


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (("user",), ["hello<|im_end|>", "and now?<|im_end|>"]),
        (("tool",), ["sunny<|im_end|>"]),
        (("system",), ["be kind<|im_end|>"]),
        (("assistant", "user"), ["hello<|im_end|>", "the answer<|im_end|>", "and now?<|im_end|>"]),
    ],
)
def test_words_of_other_roles_are_trained_with_what_ends_their_turn(
    roles: tuple[str, ...], expected: list[str]
) -> None:
    (row,) = labelled([system("be kind"), *TURNS], roles=roles)
    assert trained_text(row)[: len(expected)] == expected
    assert row.loss_mask[-1] == 1  # nothing follows the last trained token


def test_words_behind_the_last_answer_are_trained_too() -> None:
    (row,) = labelled(TURNS[:3], roles=("user",))
    assert trained_text(row) == ["hello<|im_end|>", "and now?<|im_end|>"]


def test_thoughts_that_the_template_forgets_stay_where_they_were_said() -> None:
    """As the gateway: the recorded ids of an answer are not rewritten by the turns after it."""
    thoughtful = [user("hello"), assistant("<think>hm</think>yes"), user("and now?"), assistant("no")]
    (row,) = labelled(thoughtful, STRIPS_THINK)
    assert trained_text(row) == ["<think>hm</think>yes<|im_end|>", "no<|im_end|>"]


def test_a_system_message_in_the_middle_that_a_template_hoists_begins_another_row() -> None:
    """The second answer follows another prompt than the first one's row has, so it is trained behind its own."""
    rows = labelled(
        [user("hello"), assistant("yes"), system("be kind"), user("and now?"), assistant("no")], HOISTS_SYSTEM
    )
    assert [trained_text(row) for row in rows] == [["yes<|im_end|>"], ["no<|im_end|>"]]


def test_where_the_next_roles_marker_ends_a_turn_it_is_trained() -> None:
    """Also of the last answer, which nothing follows in the data: a policy has to end it all the same."""
    (row,) = labelled([user("a"), assistant("b"), user("c"), assistant("d")], ROLE_MARKERS_END_TURNS)
    assert trained_text(row) == ["b<|im_end|>", "d<|im_end|>"]


def test_a_conversation_that_trains_nothing_gives_no_row() -> None:
    assert labelled([user("a"), assistant("b")], roles=("tool",)) == []


def test_an_answer_that_nothing_prompts_is_refused() -> None:
    with pytest.raises(RenderError, match="there are no messages to render"):
        labelled([assistant("hello"), user("a")])
