"""The bytes of a generation become the same tokens and the same errors however they are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine import stream, wire
from agentrl.engine.stream import GenerationReader
from agentrl.errors import EngineError, EngineUnavailable
from agentrl.types import TokenChunk, VersionSpan

URL = "http://one"
MAX_TOKENS = 30


def choice(*token_ids: int, **fields: Any) -> dict[str, Any]:
    content = [{"token_id": i, "logprob": -i / 8, "rank": 1, "top_logprobs": []} for i in token_ids]
    return {"token_ids": list(token_ids), "logprobs": {"content": content}, "finish_reason": None} | fields


def event(*token_ids: int, **fields: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [choice(*token_ids, **fields)]}).encode() + b"\n\n"


def last(*token_ids: int, num_tokens: int, **fields: Any) -> bytes:
    spans = [{"version": "3", "start": 0, "end": num_tokens}]
    return event(*token_ids, **{"finish_reason": "stop", "stop_reason": 7, "weight_versions": spans} | fields)


DONE = b"data: [DONE]\n\n"


def new_reader(top_logprobs: int = 0) -> GenerationReader:
    return GenerationReader(URL, max_tokens=MAX_TOKENS, top_logprobs=top_logprobs)


def read(reader: GenerationReader, reads: Iterator[bytes] | list[bytes]) -> list[TokenChunk]:
    """As the client does: nothing is fed after the end or a failure."""
    chunks: list[TokenChunk] = []
    for received in reads:
        chunks += reader.feed(received)
        if reader.done or reader.failure is not None:
            return chunks
    reader.end()
    return chunks


def test_what_one_read_brought_is_one_chunk() -> None:
    reader = new_reader()
    assert reader.feed(event(1) + event(2, 3)) == [TokenChunk(token_ids=[1, 2, 3], logprobs=[-0.125, -0.25, -0.375])]
    assert not reader.done
    assert reader.feed(event(4) + last(5, num_tokens=5) + DONE) == [
        TokenChunk(
            token_ids=[4, 5],
            logprobs=[-0.5, -0.625],
            finish_reason="stop",
            stop_reason=7,
            versions=[VersionSpan(3, 0, 5)],
        )
    ]
    assert (reader.done, reader.failure, reader.num_tokens) == (True, None, 5)


def test_a_last_event_may_have_no_tokens_and_no_logprobs() -> None:
    reader = new_reader()
    [chunk] = reader.feed(event(1) + last(num_tokens=1, logprobs=None))
    assert (chunk.token_ids, chunk.logprobs, chunk.finish_reason) == ([1], [-0.125], "stop")


BAD_LOGPROBS: list[Any] = [
    None,
    {"content": []},
    {"content": [{"token_id": 2}]},
    {"content": [{"token_id": 3, "logprob": -1.0}]},
    {"content": [{"token_id": 2, "logprob": -9999.0}]},
    {"content": [{"token_id": 2, "logprob": 2e-6}]},
    {"content": [{"token_id": 2, "logprob": True}]},
    {"content": [{"token_id": 2, "logprob": float("nan")}]},
    {"content": [{"token_id": 2, "logprob": -1.0}, {"token_id": 3, "logprob": -1.0}]},
]


@pytest.mark.parametrize("bad", BAD_LOGPROBS, ids=str)
def test_one_bad_logprob_in_a_read_spoils_no_token_before_it_and_all_from_it_on(bad: Any) -> None:
    """Invariant 3."""
    reader = new_reader()
    chunks = [*reader.feed(event(1) + event(2, logprobs=bad) + event(3)), *reader.feed(last(4, num_tokens=4))]
    assert [(chunk.token_ids, chunk.logprobs) for chunk in chunks] == [
        ([1], [-0.125]),
        ([2], None),
        ([3], None),
        ([4], None),
    ]
    assert reader.done


def test_logprobs_of_one_event_do_not_make_up_for_those_missing_in_another() -> None:
    two, none = {"content": [{"token_id": i, "logprob": -1.0} for i in (1, 2)]}, {"content": []}
    chunks = new_reader().feed(event(1, logprobs=two) + event(2, logprobs=none))
    assert [chunk.logprobs for chunk in chunks] == [None, None]


def test_asked_for_alternatives_come_with_their_tokens() -> None:
    content = [{"token_id": 1, "logprob": -1.0, "top_logprobs": [{"token_id": 9, "logprob": -0.5}]}]
    [chunk] = new_reader(top_logprobs=1).feed(event(1, logprobs={"content": content}))
    assert (chunk.logprobs, chunk.top_logprobs) == ([-1.0], [[(9, -0.5)]])


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (event(2) + b"data: {\n\n", "breaks its contract"),
        (event(2) + b'data: {"choices": [\n\ndata: ]}\n\n', "breaks its contract"),  # no event goes on in the next
        (event(2) + b'data: {"error": {"code": 400}}\n\n', "failed inside a generation"),
        (event(2) + b'data: {"choices": [], "error": null}\n\n', "failed inside a generation"),
        (event(2) + event(3, finish_reason="bored"), "'bored', which is unknown"),
        (event(2) + event(*range(3, 40)), "sampled 39 tokens; max_tokens was 30"),
        (event(2) + DONE, "after 2 tokens without a finish reason"),
        (event(2) + DONE + event(3), "after 2 tokens without a finish reason"),
    ],
)
def test_tokens_of_the_read_in_which_a_generation_failed_are_handed_on(sent: bytes, message: str) -> None:
    """Invariant 2: they were sampled, so they count."""
    reader = new_reader()
    chunks = read(reader, [event(1), sent])
    assert [token_id for chunk in chunks for token_id in chunk.token_ids][:2] == [1, 2]
    assert all(chunk.finish_reason is None for chunk in chunks)
    assert reader.failure is not None
    assert message in str(reader.failure)
    assert URL in str(reader.failure)


def test_what_follows_the_last_chunk_is_not_read() -> None:
    reader = new_reader()
    chunks = reader.feed(last(1, num_tokens=1) + event(2) + b"data: {\n\n")
    assert [chunk.token_ids for chunk in chunks] == [[1]]
    assert (reader.done, reader.failure, reader.num_tokens) == (True, None, 1)


def test_a_stream_that_just_ends_may_pass() -> None:
    reader = new_reader()
    read(reader, [event(1), event(2)[:-1]])
    assert isinstance(reader.failure, EngineUnavailable)
    assert "after 1 tokens without a finish reason" in str(reader.failure)


def test_an_event_without_an_end_is_not_gathered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_EVENT_BYTES", 1000)
    reader = new_reader()
    read(reader, [b"data: ", *[b"x" * 100] * 20])
    assert type(reader.failure) is EngineError
    assert "sent 1006 bytes without the end of an event; at most 1000" in str(reader.failure)


ids = st.lists(st.integers(0, 9), max_size=4)
events = st.one_of(
    ids.map(lambda some: event(*some)),
    ids.map(lambda some: event(*some, logprobs=None)),
    ids.map(lambda some: event(*some).replace(b"data: ", b"data:")),
    ids.map(lambda some: last(*some, num_tokens=5)),
    st.sampled_from(
        [
            DONE,
            b": ping\n\n",
            b': pi{"choices": []}\n\n',
            b"\n\n",
            b"event: x\n\n",
            b'data: {"choices": []}\n\n',
            b'data: {"choices":\n []}\n\n',
            b'data: {"error": {"code": 500}}\n\n',
            b"data: {]\n\n",
            event(65, token_ids="x"),
            event(1, stop_reason=[]),
            event(1) * 40,
        ]
    ),
)


def outcome(reads: list[bytes]) -> tuple[Any, ...]:
    reader = new_reader()
    chunks = read(reader, reads)
    token_ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
    logprobs = [value for chunk in chunks for value in chunk.logprobs or [None] * len(chunk.token_ids)]
    assert all(chunk.finish_reason is None and chunk.versions is None for chunk in chunks[:-1])
    end = chunks[-1] if reader.done else None
    ended = None if end is None else (end.finish_reason, end.stop_reason, end.versions)
    failure = None if reader.failure is None else (type(reader.failure), str(reader.failure))
    return token_ids, logprobs, ended, failure, reader.num_tokens


@given(sent=st.lists(events, max_size=8), data=st.data())
def test_tokens_logprobs_versions_and_errors_do_not_depend_on_where_reads_end(
    sent: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(sent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=10)) | {0, len(whole)})
    each_event = [part + b"\n\n" for part in whole.split(b"\n\n")[:-1]]
    with patch.object(wire, "good_choices", lambda _: None):
        expected = outcome(each_event)  # each by itself, and read leniently
    assert outcome([whole[start:end] for start, end in pairwise(cuts)]) == expected
