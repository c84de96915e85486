"""Every corruption of a trajectory is caught, by the check whose promise it breaks."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import LATEST, TrajectoryBuilder, branching, two_turns

from agentrl.audit.attribution import Gap, Piece, attribute
from agentrl.audit.finding import Finding, Subject
from agentrl.audit.identity import IDENTITY
from agentrl.audit.logprobs import LOGPROBS
from agentrl.audit.once import ONCE
from agentrl.audit.versions import VERSIONS
from agentrl.digest import digest_of
from agentrl.types import Trajectory, VersionSpan

CHECKS = (IDENTITY, ONCE, LOGPROBS, VERSIONS)


def findings(trajectory: Trajectory) -> list[Finding]:
    subject = Subject(trajectory)
    return [finding for check in CHECKS for finding in check.examine(subject).findings]


def change_id(trajectory: Trajectory, row: int, index: int) -> None:
    trajectory.rows[row].token_ids[index] += 1


# two_turns(): ids [0, 31) prompt, [31, 51) sampled by call 0, [51, 60) context, [60, 72) sampled by call 1
CORRUPTIONS: dict[str, tuple[Callable[[Trajectory], object], str, str]] = {
    "a sampled id of the row": (
        lambda t: change_id(t, 0, 33),
        "identity",
        "row 0 trains tokens [31, 51), but at index 33 it has",
    ),
    "a prompt id of the row": (
        lambda t: change_id(t, 0, 4),
        "identity",
        "row 0 trains tokens [31, 51), but at index 4 it has 15 where call s0-0 was given 14",
    ),
    "an id between the turns": (
        lambda t: change_id(t, 0, 55),
        "identity",
        "row 0 trains tokens [60, 72), but at index 55 it has 55 where call s0-1 was given 54",
    ),
    "a prompt id of the call": (
        lambda t: t.calls[1].prompt_token_ids.__setitem__(0, 11),
        "identity",
        "call s0-1: the prompt has digest",
    ),
    "the digest": (
        lambda t: setattr(t.calls[0], "prompt_digest", digest_of([1])),
        "identity",
        f"the engine was given {digest_of([1])}",
    ),
    "a token trained that was not sampled": (
        lambda t: t.rows[0].loss_mask.__setitem__(52, 1),
        "identity",
        "row 0 trains tokens [52, 53), but no call has a prompt of 52 tokens",
    ),
    "the last sampled token not trained": (
        lambda t: t.rows[0].loss_mask.__setitem__(50, 0),
        "identity",
        "row 0 trains tokens [31, 50), but call s0-0 sampled [31, 51)",
    ),
    "a row twice": (
        lambda t: t.rows.append(copy.deepcopy(t.rows[0])),
        "once",
        "tokens [31, 51) of row 1 are the sample of call s0-0, which row 0 trains already",
    ),
    "a row lost": (lambda t: t.rows.clear(), "once", "32 sampled tokens are in no row, dropped counts 0: {}"),
    "dropped tokens that were not": (
        lambda t: t.dropped.update(stale=3),
        "once",
        "0 sampled tokens are in no row, dropped counts 3",
    ),
    "an untrainable call trained": (
        lambda t: setattr(t.calls[0], "untrainable", "logprobs_missing"),
        "once",
        "call s0-0 must not be trained (logprobs_missing) but is",
    ),
    "a logprob removed": (
        lambda t: t.rows[0].logprobs.__setitem__(40, None),
        "logprobs",
        "row 0: token 40 is trained without a logprob",
    ),
    "a logprob cut out": (
        lambda t: t.rows[0].logprobs.pop(40),
        "logprobs",
        "row 0: 72 ids, 72 mask entries and 71 logprobs",
    ),
    "a logprob where nothing is trained": (
        lambda t: t.rows[0].logprobs.__setitem__(2, -0.5),
        "logprobs",
        "row 0: token 2 is not trained but has logprob -0.5",
    ),
    "a logprob that is none": (
        lambda t: t.rows[0].logprobs.__setitem__(31, float("nan")),
        "logprobs",
        "row 0: token 31 has logprob nan",
    ),
    "a probability above one": (
        lambda t: t.rows[0].logprobs.__setitem__(31, 0.1),
        "logprobs",
        "row 0: token 31 has logprob 0.1",
    ),
    "a logprob that the engine did not report": (
        lambda t: t.rows[0].logprobs.__setitem__(61, -0.125),
        "logprobs",
        "for token 61, the row has -0.125",
    ),
    "a call without logprobs": (
        lambda t: setattr(t.calls[1], "logprobs", None),
        "logprobs",
        "row 0: call s0-1 is trained with no logprobs for 12 tokens",
    ),
    "a mask of two": (lambda t: t.rows[0].loss_mask.__setitem__(0, 2), "logprobs", "row 0: token 0 has mask 2"),
    "a version span shifted": (
        lambda t: t.rows[0].versions.__setitem__(0, VersionSpan(0, 32, 52)),
        "versions",
        "row 0: token 31 has mask 1 and version none",
    ),
    "a version of the row": (
        lambda t: t.rows[0].versions.__setitem__(1, VersionSpan(1, 60, 72)),
        "versions",
        "row 0: token 60 has version 1, call s0-1 recorded 0",
    ),
    "a gap in a call's versions": (
        lambda t: setattr(t.calls[0], "versions", [VersionSpan(0, 0, 5), VersionSpan(0, 6, 20)]),
        "versions",
        "call s0-0: span [6, 20) follows on token 5",
    ),
    "a call's versions too short": (
        lambda t: setattr(t.calls[0], "versions", [VersionSpan(0, 0, 19)]),
        "versions",
        "call s0-0: versions cover 19 of 20 tokens",
    ),
    "versions that go back": (
        lambda t: setattr(t.calls[0], "versions", [VersionSpan(3, 0, 5), VersionSpan(2, 5, 20)]),
        "versions",
        "call s0-0: version 2 at token 5 comes after version 3",
    ),
    "row spans that overlap": (
        lambda t: t.rows[0].versions.insert(1, VersionSpan(0, 50, 51)),
        "versions",
        "row 0: span [50, 51) follows on token 51 of 72",
    ),
}


@pytest.mark.parametrize(("corrupt", "check", "detail"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corruption_is_named(corrupt: Callable[[Trajectory], object], check: str, detail: str) -> None:
    trajectory = two_turns().build()
    corrupt(trajectory)
    found = [finding for finding in findings(trajectory) if finding.check == check]
    assert found, findings(trajectory)
    assert all(finding.session_id == "s0" for finding in found)
    assert any(detail in finding.detail for finding in found), found


@pytest.mark.parametrize(
    "trajectory",
    [
        two_turns().build(),
        branching().build(),
        TrajectoryBuilder().build(),
        TrajectoryBuilder().call([1, 2], 3).call([4], 5, untrainable="aborted").call([6], 2, after=0).build(),
        TrajectoryBuilder().call([1, 2], 3, untrainable="logprobs_missing").call([4], 5).build(),
        TrajectoryBuilder().call([1, 2], 3).call([], 4).build(),
        TrajectoryBuilder().call([1, 2], 0, untrainable="empty").build(),
    ],
    ids=["two turns", "branches", "no call", "a dropped leaf", "a dropped parent", "no ids between", "an empty sample"],
)
def test_what_keeps_the_invariants_is_clean(trajectory: Trajectory) -> None:
    assert findings(trajectory) == []


def test_items_count_what_was_looked_at() -> None:
    """2 prompts and 2 samples; 32 sampled tokens; 72 row tokens; 32 sampled tokens. Nothing in an empty session."""
    assert [check.examine(Subject(two_turns().build())).items for check in CHECKS] == [4, 32, 72, 32]
    assert [check.examine(Subject(TrajectoryBuilder().build())).items for check in CHECKS] == [0, 0, 0, 0]


def test_a_shared_sample_belongs_to_the_first_row_only() -> None:
    """branching(): call 0 in rows 0 and 1, trained in row 0; call 3 alone in row 2."""
    assert attribute(branching().build()).pieces == [
        Piece(call=0, row=0, start=10, end=15),
        Piece(call=1, row=0, start=17, end=21),
        Piece(call=2, row=1, start=16, end=22),
        Piece(call=3, row=2, start=3, end=6),
    ]


def test_equal_samples_are_told_apart_by_their_logprobs() -> None:
    """Two calls sampled the same ids after the same prompt; each row belongs to the call whose logprobs it has."""
    trajectory = TrajectoryBuilder().call([1, 2], [7, 8]).call([1, 2], [7, 8], after=None).build()
    trajectory.rows.reverse()
    assert attribute(trajectory).pieces == [Piece(1, 0, 2, 4), Piece(0, 1, 2, 4)]
    assert findings(trajectory) == []


def test_a_sample_that_begins_like_a_longer_one() -> None:
    """Call 1 sampled the first two ids of call 0's sample: the longer one explains the longer row."""
    trajectory = TrajectoryBuilder().call([1, 2], [7, 8, 9]).call([1, 2], [7, 8], after=None).build()
    for call in trajectory.calls:
        call.logprobs = [-0.5, -0.25, -0.125][: len(call.token_ids)]
    for row in trajectory.rows:
        row.logprobs[2:] = [-0.5, -0.25, -0.125][: len(row.logprobs) - 2]
    assert attribute(trajectory).pieces == [Piece(0, 0, 2, 5), Piece(1, 1, 2, 4)]
    assert findings(trajectory) == []


def test_unexplained_tokens_are_one_gap() -> None:
    trajectory = two_turns().build()
    change_id(trajectory, 0, 0)
    assert attribute(trajectory).gaps == [Gap(0, 31, 51, None), Gap(0, 60, 72, None)]


@st.composite
def sessions(draw: st.DrawFn) -> Trajectory:
    """Random call trees: branches, shared prefixes, dropped calls, swaps in flight."""
    builder = TrajectoryBuilder(seed=draw(st.integers(0, 10**6)))
    count = draw(st.integers(1, 6))
    for index in range(count):
        after = draw(st.none() | st.integers(0, index - 1)) if index else LATEST
        size = draw(st.integers(1, 6))
        cut = draw(st.integers(0, size))
        versions = [(version, tokens) for version, tokens in ((0, cut), (1, size - cut)) if tokens]
        builder.call(
            draw(st.lists(st.integers(3, 350), min_size=1, max_size=4)),
            size,
            after=after,
            versions=versions,
            untrainable=draw(st.sampled_from([None, None, None, "aborted"])),
        )
    return builder.build()


@given(sessions())
@settings(max_examples=200)
def test_any_valid_session_is_clean(trajectory: Trajectory) -> None:
    assert findings(trajectory) == []


def corrupt_at_random(trajectory: Trajectory, source: random.Random) -> str:
    """One change that breaks an invariant, at a random place of the first kind that finds one."""
    row = source.choice(trajectory.rows)
    trained = [index for index, mask in enumerate(row.loss_mask) if mask]
    idle = [index for index, mask in enumerate(row.loss_mask) if not mask]
    call = source.choice([call for call in trajectory.calls if call.untrainable is None])
    span = source.randrange(len(call.versions))
    kinds: dict[str, Callable[[], object]] = {
        "row id": lambda: row.token_ids.__setitem__(source.randrange(trained[-1] + 1), 999),
        "row cut": lambda: [array.pop() for array in (row.token_ids, row.loss_mask, row.logprobs)],
        "row twice": lambda: trajectory.rows.append(copy.deepcopy(row)),
        "row lost": lambda: trajectory.rows.remove(row),
        "mask off": lambda: row.loss_mask.__setitem__(source.choice(trained), 0),
        "mask on": lambda: row.loss_mask.__setitem__(source.choice(idle), 1),
        "logprob removed": lambda: row.logprobs.__setitem__(source.choice(trained), None),
        "logprob changed": lambda: row.logprobs.__setitem__(source.choice(trained), -12.5),
        "logprob added": lambda: row.logprobs.__setitem__(source.choice(idle), -0.5),
        "row span shifted": lambda: row.versions.__setitem__(0, _shift(row.versions[0], 1)),
        "row version": lambda: row.versions.__setitem__(0, VersionSpan(9, row.versions[0].start, row.versions[0].end)),
        "row span lost": lambda: row.versions.pop(),
        "call id": lambda: call.token_ids.__setitem__(source.randrange(len(call.token_ids)), 999),
        "call prompt": lambda: call.prompt_token_ids.__setitem__(source.randrange(len(call.prompt_token_ids)), 999),
        "call cut": lambda: (call.token_ids.pop(), call.logprobs and call.logprobs.pop()),
        "call logprob": lambda: call.logprobs and call.logprobs.__setitem__(0, -12.5),
        "call span shifted": lambda: call.versions.__setitem__(span, _shift(call.versions[span], 1)),
        "call version": lambda: call.versions.__setitem__(span, VersionSpan(9, *_ends(call.versions[span]))),
        "call lost": lambda: trajectory.calls.remove(call),
        "digest": lambda: setattr(call, "prompt_digest", digest_of([*call.prompt_token_ids, 0])),
        "dropped": lambda: trajectory.dropped.update(other=1),
    }
    kind = source.choice(sorted(kinds))
    kinds[kind]()
    return kind


def _shift(span: VersionSpan, by: int) -> VersionSpan:
    return VersionSpan(span.version, span.start + by, span.end + by)


def _ends(span: VersionSpan) -> tuple[int, int]:
    return span.start, span.end


@given(sessions().filter(lambda trajectory: bool(trajectory.rows)), st.integers(0, 2**32))
@settings(max_examples=500)
def test_any_single_corruption_is_caught(trajectory: Trajectory, seed: int) -> None:
    kind = corrupt_at_random(trajectory, random.Random(seed))
    assert findings(trajectory), kind
