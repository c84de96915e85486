"""The token graph: rows that follow from random trees of calls keep invariants 1, 2 and 3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.gateway.graph import TokenGraph, build_rows, count_dropped, untrainable_reason
from agentrl.types import Call, Sampling, VersionSpan


def call(
    prompt: list[int], sample: list[int], *, parent: int | None = None, untrainable: str | None = None, version: int = 0
) -> Call:
    return Call(
        call_id=f"call-{prompt}-{sample}",
        prompt_token_ids=prompt,
        prompt_digest="",
        token_ids=sample,
        logprobs=None if untrainable else [logprob(token) for token in sample],
        versions=[VersionSpan(version, 0, len(sample))] if sample else [],
        finish_reason="stop",
        engine_id="engine-0",
        sampling=Sampling(),
        message={"role": "assistant", "content": ""},
        parent=parent,
        untrainable=untrainable,
    )


def logprob(token: int) -> float:
    return -token / 1000


# A tree as (parent or None, context tokens before the sample, sampled tokens, reason) per call. A parent is given as a
# number to be taken modulo the calls so far.
PLANS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 50)),
        st.integers(0, 3),
        st.integers(0, 4),
        st.sampled_from([None, None, None, "logprobs_missing", "aborted"]),
    ),
    max_size=14,
)


def grow(plan: list[tuple[int | None, int, int, str | None]]) -> list[Call]:
    """Calls in which every sampled token has an id of its own, so that a token tells which call sampled it."""
    calls: list[Call] = []
    for parent_number, context, sampled, reason in plan:
        parent = parent_number % len(calls) if calls and parent_number is not None else None
        before = [] if parent is None else calls[parent].prompt_token_ids + calls[parent].token_ids
        number = len(calls)
        sample = [1000 * (number + 1) + i for i in range(sampled)]
        reason = "empty" if not sample and reason is None else reason
        calls.append(call(before + [number] * context, sample, parent=parent, untrainable=reason, version=number))
    return calls


@given(PLANS)
def test_every_row_is_the_prompt_and_sample_of_a_path_id_for_id(plan: list) -> None:
    calls = grow(plan)
    whole = [c.prompt_token_ids + c.token_ids for c in calls]
    assert all(row.token_ids in whole for row in build_rows(calls))


@given(PLANS)
def test_every_trainable_token_is_trained_once_and_every_other_is_counted(plan: list) -> None:
    calls = grow(plan)
    trained = [t for row in build_rows(calls) for t, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert sorted(trained) == sorted(t for c in calls if c.untrainable is None for t in c.token_ids)
    assert sum(count_dropped(calls).values()) + len(trained) == sum(len(c.token_ids) for c in calls)


@given(PLANS)
def test_logprobs_stand_beside_trained_tokens_and_nowhere_else(plan: list) -> None:
    for row in build_rows(grow(plan)):
        expected = [logprob(t) if m else None for t, m in zip(row.token_ids, row.loss_mask, strict=True)]
        assert row.logprobs == expected


@given(PLANS)
def test_spans_cover_exactly_the_trained_tokens_with_the_version_that_sampled_them(plan: list) -> None:
    for row in build_rows(grow(plan)):
        versions: dict[int, int] = {}
        for span in row.versions:
            assert not versions.keys() & set(range(span.start, span.end))
            versions |= dict.fromkeys(range(span.start, span.end), span.version)
        expected = {i: t // 1000 - 1 for i, t in enumerate(row.token_ids) if row.loss_mask[i]}  # version = call number
        assert versions == expected


@given(PLANS)
def test_no_row_is_without_a_trained_token_and_each_ends_in_one(plan: list) -> None:
    assert all(row.loss_mask[-1] == 1 for row in build_rows(grow(plan)))


def test_a_shared_ancestor_is_trained_with_its_first_leaf_and_is_context_for_the_second() -> None:
    root = call([1], [10, 11])
    left = call([1, 10, 11, 2], [20], parent=0)
    right = call([1, 10, 11, 3], [30], parent=0)
    rows = build_rows([root, left, right])
    assert [row.token_ids for row in rows] == [[1, 10, 11, 2, 20], [1, 10, 11, 3, 30]]
    assert [row.loss_mask for row in rows] == [[0, 1, 1, 0, 1], [0, 0, 0, 0, 1]]


def test_an_aborted_retry_beside_the_answer_does_not_cost_its_ancestor_a_row_of_its_own() -> None:
    calls = [
        call([1], [10]),
        call([1, 10, 2], [20], parent=0, untrainable="aborted"),
        call([1, 10, 2], [30], parent=0),
    ]
    assert [row.token_ids for row in build_rows(calls)] == [[1, 10, 2, 30]]
    assert count_dropped(calls) == {"aborted": 1}


def test_an_untrainable_turn_in_the_middle_is_context() -> None:
    calls = [
        call([1], [10]),
        call([1, 10, 2], [20, 21], parent=0, untrainable="logprobs_missing"),
        call([1, 10, 2, 20, 21, 3], [30], parent=1),
    ]
    [row] = build_rows(calls)
    assert row.token_ids == [1, 10, 2, 20, 21, 3, 30]
    assert row.loss_mask == [0, 1, 0, 0, 0, 0, 1]
    assert count_dropped(calls) == {"logprobs_missing": 2}


def test_a_session_without_a_call_has_no_row() -> None:
    assert build_rows([]) == []


def test_a_call_that_does_not_extend_its_parent_is_refused() -> None:
    graph = TokenGraph()
    graph.add(call([1], [10]), [b"a"])
    with pytest.raises(ValueError, match="id for id"):
        graph.add(call([1, 99, 2], [20], parent=0), [b"b"])


def test_the_longest_recorded_conversation_is_continued_and_the_latest_of_equal_ones() -> None:
    graph = TokenGraph()
    graph.add(call([1], [10]), [b"one turn"])
    graph.add(call([1, 10], [20], parent=0), [b"two turns"])
    graph.add(call([1], [11]), [b"one turn"])
    assert graph.match([b"", b"question", b"one turn", b"more", b"two turns", b"end"]) == (1, 4)
    assert graph.match([b"", b"question", b"one turn"]) == (2, 2)
    assert graph.match([b"", b"another"]) == (None, 0)


@pytest.mark.parametrize(
    ("token_ids", "logprobs", "spans", "reason"),
    [
        ([5, 6], [-0.5, -0.25], [(0, 0, 1), (1, 1, 2)], None),
        ([], [], [], "empty"),
        ([5, 6], None, [(0, 0, 2)], "logprobs_missing"),
        ([5, 6], [-0.5], [(0, 0, 2)], "logprobs_wrong_size"),
        ([5, 6], [-0.5, float("nan")], [(0, 0, 2)], "logprobs_not_finite"),
        ([5, 6], [-0.5, float("-inf")], [(0, 0, 2)], "logprobs_not_finite"),
        ([5, 6], [-0.5, -0.25], [], "versions_wrong"),
        ([5, 6], [-0.5, -0.25], [(0, 0, 1)], "versions_wrong"),
        ([5, 6], [-0.5, -0.25], [(0, 0, 1), (0, 0, 2)], "versions_wrong"),
        ([5, 6], [-0.5, -0.25], [(1, 0, 1), (0, 1, 2)], "versions_wrong"),
    ],
)
def test_what_may_not_be_trained_has_a_name(token_ids: list, logprobs: list, spans: list, reason: str | None) -> None:
    assert untrainable_reason(token_ids, logprobs, [VersionSpan(*span) for span in spans]) == reason
