"""Invariant 7: what was admitted is trained once or dropped for a reason; evaluation is never trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from agentrl.audit.books import Books, BooksCheck
from agentrl.audit.finding import Finding, Verdict
from agentrl.store.base import TRAINED, Settlement

TRAINED_ONCE_NAME = "trained once"
GROUPS_NAME = "groups"


def examine_settlements(books: Books) -> Verdict:
    verdict = Verdict(items=len(books.settlements))
    times = Counter(settlement.session_id for settlement in books.settlements)
    for session_id, count in times.items():
        if count > 1:
            verdict.findings.append(Finding(TRAINED_ONCE_NAME, session_id, f"settled {count} times"))
    for settlement in books.settlements:
        if settlement.outcome == TRAINED:
            for detail in _of_trained(books, settlement):
                verdict.findings.append(Finding(TRAINED_ONCE_NAME, settlement.session_id, detail))
    return verdict


def _of_trained(books: Books, settlement: Settlement) -> Iterator[str]:
    what = f"trained at step {settlement.step}"
    facts = books.sessions.get(settlement.session_id)
    if facts is None:
        yield f"{what} but not in the store"
        return
    if facts.mode != "train":
        yield f"{what} but of mode {facts.mode}"
    trainable = sum(facts.tokens.values())
    if not 0 < settlement.tokens <= trainable:
        yield f"{what} with {settlement.tokens} tokens, its rows hold {trainable}"
    group = books.groups.get(facts.group_id or "")
    if group is None:
        yield f"{what} but its group {facts.group_id} was never admitted"
    elif (group.outcome, group.step) != (TRAINED, settlement.step):
        yield f"{what} but its group {group.group_id} is {group.outcome or 'open'} at step {group.step}"


def examine_groups(books: Books) -> Verdict:
    verdict = Verdict(items=len(books.groups))
    settled = {settlement.session_id for settlement in books.settlements}
    for session_id, facts in books.sessions.items():
        if facts.mode != "train" or facts.group_id is None or not books.groups:
            continue
        group = books.groups.get(facts.group_id)
        if group is None:
            detail = f"belongs to group {facts.group_id}, which was never admitted"
            verdict.findings.append(Finding(GROUPS_NAME, session_id, detail))
        elif group.outcome == TRAINED and session_id not in settled:
            detail = f"has no settlement though its group {facts.group_id} is trained at step {group.step}"
            verdict.findings.append(Finding(GROUPS_NAME, session_id, detail))
    still_open = [group.group_id for group in books.groups.values() if group.outcome is None]
    if still_open and books.complete:
        details = "admitted but neither trained nor dropped though the run has ended"
        verdict.findings += [Finding(GROUPS_NAME, group_id, details) for group_id in still_open]
    elif still_open:
        verdict.notes.append(f"{len(still_open)} open: the run was stopped or goes on")
    return verdict


SETTLEMENTS = BooksCheck(TRAINED_ONCE_NAME, invariant=7, unit="settlements", examine=examine_settlements)
GROUPS = BooksCheck(GROUPS_NAME, invariant=7, unit="groups", examine=examine_groups)
