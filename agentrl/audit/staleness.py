"""Invariant 8: no token got gradient that was sampled more than K versions before the version being trained.

Step s trains from version s - 1. The stored rows hold older tokens too (they are masked when the batch is made), so
what can be held against the books is the number: no more tokens were trained than are within the bound.
"""

from __future__ import annotations

from agentrl.audit.books import Books, BooksCheck
from agentrl.audit.finding import Finding, Verdict
from agentrl.store.base import TRAINED

NAME = "staleness"


def examine(books: Books) -> Verdict:
    if books.max_lag is None:
        return Verdict(notes=["config.json names no staleness.max_lag"])
    verdict = Verdict()
    for settlement in books.settlements:
        facts = books.sessions.get(settlement.session_id)
        if settlement.outcome != TRAINED or facts is None:
            continue
        verdict.items += settlement.tokens
        trained_from = settlement.step - 1
        lags = {trained_from - version: count for version, count in facts.tokens.items()}
        fresh = sum(count for lag, count in lags.items() if 0 <= lag <= books.max_lag)
        if settlement.tokens > fresh:
            detail = (
                f"{settlement.tokens} tokens trained at step {settlement.step}, "
                f"{fresh} were sampled by versions {max(trained_from - books.max_lag, 0)} to {trained_from}"
            )
            verdict.findings.append(Finding(NAME, settlement.session_id, detail))
    return verdict


STALENESS = BooksCheck(NAME, invariant=8, unit="trained tokens", examine=examine)
