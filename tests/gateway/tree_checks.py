"""What must hold for a finished session, told from the books of the engines and of the client alone.

Every sampled token has a logprob of its own, so a trained token says itself which one it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from template_families import TemplateFamily
from tree_agent import Given
from tree_builders import Finished, call_of, prompts_of
from tree_controls import check_controls
from tree_twin import Run

from agentrl.audit.finding import Subject
from agentrl.audit.identity import IDENTITY
from agentrl.audit.logprobs import LOGPROBS
from agentrl.audit.once import ONCE
from agentrl.audit.versions import VERSIONS
from agentrl.types import Row

SPOILT = {"no_logprobs": "logprobs_missing", "nan_logprobs": "logprobs_not_finite", "wrong_spans": "versions_wrong"}


class Trained(NamedTuple):
    """One token with mask 1."""

    row: int
    index: int
    run: int
    offset: int


def trained_tokens(done: Finished) -> list[Trained]:
    """By their logprobs; fails for a trained token whose logprob no engine gave."""
    at = {
        logprob: (number, offset)
        for number, run in enumerate(done.world.runs)
        for offset, logprob in enumerate(run.logprobs)
    }
    found = []
    for number, row in enumerate(done.trajectory.rows):
        assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs)
        for index, (mask, logprob) in enumerate(zip(row.loss_mask, row.logprobs, strict=True)):
            assert mask in (0, 1)
            assert (logprob is not None) == (mask == 1)
            if logprob is not None:
                assert logprob in at, f"row {number}, token {index}: no engine gave logprob {logprob}"
                found.append(Trained(number, index, *at[logprob]))
    return found


def check_identity(done: Finished) -> None:
    """Invariant 1: a trained token is one that an engine sampled, and before it stands what that engine was given."""
    trained = trained_tokens(done)
    for (number, which), tokens in groupby(trained, key=lambda token: (token.row, token.run)):
        row, run, last = done.trajectory.rows[number], done.world.runs[which], list(tokens)[-1]
        start = last.index - last.offset
        assert row.token_ids[:start] == run.prompt_ids
        assert row.token_ids[start : last.index + 1] == run.token_ids[: last.offset + 1]


def check_once(done: Finished) -> None:
    """Invariant 2: exactly what the client was given is trained, each token once; the rest is counted by its reason."""
    trained = trained_tokens(done)
    times = Counter((token.run, token.offset) for token in trained)
    assert not times or max(times.values()) == 1, "a token is trained twice"
    num_sampled = sum(len(run.token_ids) for run in done.world.runs)
    assert num_sampled == len(trained) + sum(done.trajectory.dropped.values())

    trained_by_call: dict[str, int] = defaultdict(int)
    for token in trained:
        trained_by_call[call_of(done.world.runs[token.run])[0]] += 1
    unfinished, spoilt = _unfinished(done), _spoilt(done)
    for call_id in {call_of(run)[0] for run in done.world.runs}:
        count = trained_by_call[call_id]
        if call_id in spoilt or call_id in unfinished:
            assert count == 0, f"{call_id} must not be trained ({spoilt.get(call_id, 'nobody was given it')})"
        elif call_id in done.agent.given:
            assert count == len(done.agent.given[call_id].token_ids), f"{call_id} was given to the client"
    expected: Counter[str] = Counter()
    for call_id, reason in spoilt.items():
        if call_id in done.agent.given:
            expected[reason] += len(done.agent.given[call_id].token_ids)
    for reason, count in expected.items():
        assert done.trajectory.dropped.get(reason, 0) >= count


def check_books(done: Finished) -> None:
    """The session's calls are the answers that were given: a request sent again added none. Its limit was kept."""
    calls = {call.call_id: call for call in done.trajectory.calls}
    assert len(calls) == len(done.trajectory.calls)
    unfinished = _unfinished(done)
    sampled = {call_of(run)[0] for run in done.world.runs}
    for given in done.agent.given.values():
        call = calls[given.call_id]
        assert (call.token_ids, call.message) == (given.token_ids, given.message)
    for call_id, call in calls.items():
        if call.finish_reason != "abort" and call_id not in done.agent.given:
            assert call_id in sampled, f"{call_id} was never sampled"
            assert call_id not in unfinished or call.untrainable, f"nobody was given {call_id}"
    if done.plan.max_tokens is not None:
        used = sum(len(call.token_ids) for call in calls.values() if call.finish_reason != "abort")
        assert used <= done.plan.max_tokens


def check_logprobs_and_versions(done: Finished) -> None:
    """Invariants 3 and 4: each trained token has the logprob (which names it) and the version that it had."""
    versions = [_versions(row) for row in done.trajectory.rows]
    for token in trained_tokens(done):
        run = done.world.runs[token.run]
        assert done.trajectory.rows[token.row].token_ids[token.index] == run.token_ids[token.offset]
        assert versions[token.row][token.index] == run.known_versions[token.offset]
    for row, by_index in zip(done.trajectory.rows, versions, strict=True):
        assert [index for index, mask in enumerate(row.loss_mask) if mask] == sorted(by_index)
    sampled, spoilt = _sampled(done), _spoilt(done)
    for call_id, given in done.agent.given.items():
        if call_id not in spoilt:
            assert given.logprobs == [logprob for _, logprob in sampled[call_id]][: len(given.token_ids)]


def check_told(done: Finished) -> None:
    """The client was told the ids that were sampled and their prompt, and its text is what they spell."""
    prompts, sampled = prompts_of(done), _sampled(done)
    for call_id, given in done.agent.given.items():
        assert given.token_ids == [token_id for token_id, _ in sampled[call_id]][: len(given.token_ids)]
        assert given.prompt_ids in (None, prompts[call_id])
        text = _text(done.family, given)
        message = given.message
        thoughts, content = message.get("reasoning_content"), message["content"]
        if message.get("tool_calls") or thoughts or _in_thoughts(done.family, prompts[call_id], text):
            assert _is_within(content or "", text)
            assert _is_within(thoughts or "", text)
            for call in message.get("tool_calls") or ():
                assert call["function"]["name"] in text
        else:
            assert (content or "").rstrip("\ufffd") == text


def check_extended(done: Finished) -> None:
    """Invariant 1: where nothing was rewritten, the next prompt is the recorded ids and then those of what is new."""
    if done.plan.history == "rerender":
        return
    prompts, sampled = prompts_of(done), _sampled(done)
    for call_id, given in done.agent.given.items():
        last = given.must_extend
        if last is None or _opened_another_turn(done.family, last, given):
            continue
        equal = [
            [*prompts[other.call_id], *other.token_ids]
            for other in done.agent.given.values()
            if len(other.messages) == len(last.messages) and _said(other.message) == _said(last.message)
        ]
        equal += [
            [*prompts[other], *(token_id for token_id, _ in tokens)]
            for other, tokens in sampled.items()
            if other not in done.agent.given and prompts[other] == prompts[last.call_id]
        ]
        assert any(prompts[call_id][: len(ids)] == ids for ids in equal), f"{call_id} does not extend {last.call_id}"


def check_audit(done: Finished) -> None:
    """What `agentrl audit` looks at in one trajectory."""
    for check in (IDENTITY, ONCE, LOGPROBS, VERSIONS):
        assert check.examine(Subject(done.trajectory)).findings == []


CHECKS = (
    check_identity,
    check_once,
    check_books,
    check_logprobs_and_versions,
    check_told,
    check_extended,
    check_controls,
    check_audit,
)


def _unfinished(done: Finished) -> set[str]:
    """Calls of responses that nobody was given in which an engine did not come to the end of a choice."""
    last = {call_of(run): run for run in done.world.runs}
    sampled = _sampled(done)
    broken = {
        response
        for (call_id, response), run in last.items()
        if not run.ended and not _is_whole(done, run, [token_id for token_id, _ in sampled[call_id]])
    }
    return {call_id for call_id, response in last if response in broken} - set(done.agent.given)


def _is_whole(done: Finished, last: Run, token_ids: list[int]) -> bool:
    """Whether a sample may be all there is although its last engine was lost or stopped before it said so."""
    family, sampling = done.family, last.sampling
    ends = {family.id(family.eos), *sampling.stop_token_ids}
    return (
        (bool(token_ids) and token_ids[-1] in ends)
        or len(last.token_ids) == sampling.max_tokens
        or any(stop in family.decoded(token_ids) for stop in sampling.stop)
        or done.plan.max_tokens is not None
    )


def _spoilt(done: Finished) -> dict[str, str]:
    """Calls that an engine gave no good logprobs or versions for, and the first reason to drop them."""
    found: dict[str, set[str]] = defaultdict(set)
    for run in done.world.runs:
        if run.spoil and run.token_ids and (run.spoil != "wrong_spans" or run.told_wrong_spans):
            found[call_of(run)[0]].add(SPOILT[run.spoil])
    return {call_id: min(reasons) for call_id, reasons in found.items()}


def _sampled(done: Finished) -> dict[str, list[tuple[int, float]]]:
    """(token, logprob) of every call, over all its engines."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for run in done.world.runs:
        found[call_of(run)[0]] += zip(run.token_ids, run.logprobs, strict=True)
    return found


def _versions(row: Row) -> dict[int, int]:
    return {index: span.version for span in row.versions for index in range(span.start, span.end)}


def _text(family: TemplateFamily, given: Given) -> str:
    """What the ids spell, up to the stop string and without the token that ended the turn."""
    ends = {family.id(text) for text in (family.eos, *family.other_ends)} | family.renderer.end_ids
    ids = given.token_ids[:-1] if given.token_ids and given.token_ids[-1] in ends else given.token_ids
    text = family.decoded(ids).rstrip("\ufffd")
    found = [at for stop in given.stop if (at := text.find(stop)) >= 0]
    return text[: min(found)] if found else text


def _in_thoughts(family: TemplateFamily, prompt: Sequence[int], text: str) -> bool:
    """Whether the thoughts' marks, which are no text, may be in there."""
    return family.name in ("deepseek_r1", "harmony") or "<think>" in text or "</think>" in text


def _is_within(part: str, text: str) -> bool:
    """Whether the characters of `part` come in `text` in this order."""
    left = iter(text.replace("\ufffd", ""))
    return all(char in left for char in part.replace("\ufffd", ""))


def _said(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a client that leaves thoughts out sends back; ids of calls aside."""
    return message.get("content") or "", [call["function"] for call in message.get("tool_calls") or ()]


def _opened_another_turn(family: TemplateFamily, last: Given, given: Given) -> bool:
    """GLM ends a turn by sampling the mark of the role that is to speak. Where another does, nothing can follow."""
    if family.name != "glm45" or not last.token_ids:
        return False
    role = given.messages[len(last.messages) + 1]["role"]
    opener = family.id("<|observation|>" if role == "tool" else "<|user|>")
    return last.token_ids[-1] in {family.id("<|observation|>"), family.id("<|user|>")} - {opener}
