"""The engine's schema as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.wire import Event, checked_logprobs, checked_spans, decode, spans_of, version_of
from agentrl.errors import EngineError
from agentrl.types import VersionSpan


@pytest.mark.parametrize(("label", "version"), [("default", 0), ("0", 0), ("17", 17)])
def test_labels_are_versions(label: str, version: int) -> None:
    assert version_of(label) == version


@pytest.mark.parametrize("label", ["", "v1", "-1", "1.0", "²", None, 3, "1" * 19, "9" * 5000])
def test_a_label_that_is_no_version_is_refused(label: object) -> None:
    with pytest.raises(EngineError, match="names its weights"):
        version_of(label)


def entry(token_id: int, logprob: object) -> dict[str, object]:
    return {"token_id": token_id, "logprob": logprob, "top_logprobs": []}


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": [entry(5, -1.0)]},  # too few
        {"content": [entry(5, -1.0), entry(6, -1.0), entry(7, -1.0)]},  # too many
        {"content": [entry(5, -1.0), entry(9, -1.0)]},  # of another token
        {"content": [entry(5, -1.0), entry(6, None)]},
        {"content": [entry(5, -1.0), entry(6, float("nan"))]},
        {"content": [entry(5, -1.0), entry(6, float("-inf"))]},
        {"content": [entry(5, -1.0), entry(6, -9999.0)]},  # vLLM's word for "there is none"
        {"content": [entry(5, -1.0), entry(6, "-1.0")]},
        {"content": [entry(5, -1.0), entry(6, 2e-6)]},  # a probability above 1
        {"content": [entry(5, -1.0), entry(6, False)]},
        {"content": [entry(5, -1.0), {"logprob": -1.0}]},
        {"content": [entry(5, -1.0), 6]},
        {"content": 5},
        "x",
    ],
)
def test_anything_but_one_finite_logprob_for_each_token_is_none_at_all(logprobs: object) -> None:
    assert checked_logprobs([5, 6], logprobs) is None


def test_good_logprobs_pass_unchanged() -> None:
    assert checked_logprobs([5, 6], {"content": [entry(5, -0.25), entry(6, 0)]}) == [-0.25, 0.0]
    assert checked_logprobs([5], {"content": [entry(5, 5e-7)]}) == [5e-7]  # rounding of a probability of 1
    assert checked_logprobs([], None) == []


@given(st.lists(st.integers(0, 3), max_size=40).map(sorted))
def test_spans_of_versions_cover_them_and_pass_the_check(versions: list[int]) -> None:
    spans = spans_of(versions)
    assert [span.version for span in spans for _ in range(span.start, span.end)] == versions
    wire = [{"version": str(span.version), "start": span.start, "end": span.end} for span in spans]
    assert checked_spans(wire or None, len(versions)) == spans


@pytest.mark.parametrize(
    "spans",
    [
        None,
        [],
        [("1", 0, 3)],  # too short
        [("1", 0, 5)],  # too long
        [("1", 0, 2), ("2", 3, 4)],  # a gap
        [("1", 0, 3), ("2", 2, 4)],  # an overlap
        [("2", 0, 2), ("1", 2, 4)],  # back to older weights
        [("1", 0, 4), ("2", 4, 4)],  # empty
        [("1", 1, 4)],
    ],
)
def test_spans_must_cover_every_token_once_in_rising_versions(spans: list[tuple[str, int, int]] | None) -> None:
    wire = [{"version": version, "start": start, "end": end} for version, start, end in spans or ()]
    with pytest.raises(EngineError, match="do not cover its 4 tokens"):
        checked_spans(wire or None, 4)


def test_a_first_swap_in_flight_reads_as_version_0_then_1() -> None:
    wire = [{"version": "default", "start": 0, "end": 3}, {"version": "1", "start": 3, "end": 5}]
    assert checked_spans(wire, 5) == [VersionSpan(0, 0, 3), VersionSpan(1, 3, 5)]


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"3"])
def test_an_event_that_is_no_object_breaks_the_contract(data: bytes) -> None:
    with pytest.raises(EngineError, match=r"engine http://one breaks its contract: .*; it sent b'"):
        decode(data, Event, source="http://one")


def test_literals_that_are_python_and_not_json_read_as_null() -> None:
    event = decode(b'{"choices": [{"logprobs": [NaN, -Infinity, -1.5]}]}', Event, source="http://one")
    assert event.choices[0].logprobs == [None, None, -1.5]
