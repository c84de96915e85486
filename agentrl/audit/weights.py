"""Invariant 3 against the weights: recorded logprobs equal a forward pass of the exported version that sampled.

Left out, and counted in a note: tokens sampled over keys and values of older weights (swap mode `keep`), whose logprobs
no forward pass of one version gives, and calls whose distribution was reshaped by more than a temperature.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from agentrl.audit.attribution import Piece
from agentrl.audit.finding import Finding, Subject, Verdict
from agentrl.audit.swap_log import SwapLog
from agentrl.errors import AuditError
from agentrl.types import Call, CheckRow, Sampling

NAME = "weights"

LogprobCheck = Callable[[Path, Sequence[CheckRow]], list[float]]
"""(model directory, rows) -> the largest absolute difference per row."""

_Reference = tuple[str, int]  # session id, row


class RowSampler:
    """Draws up to `max_rows` rows of each exported version while trajectories stream past, uniformly, reproducibly."""

    def __init__(self, versions: Sequence[int], log: SwapLog, *, max_rows: int) -> None:
        self._log = log
        self._max_rows = max_rows
        self._random = random.Random(0)
        self._seen: Counter[int] = Counter()
        self._drawn: dict[int, list[_Reference]] = {version: [] for version in versions}
        self.skipped_tokens = 0

    def offer(self, subject: Subject) -> None:
        versions: dict[int, set[int]] = defaultdict(set)
        for piece in subject.attribution.pieces:
            call = subject.trajectory.calls[piece.call]
            for span in call.versions:
                if span.version not in self._drawn:
                    continue
                if _comparable(call, span.version, self._log):
                    versions[piece.row].add(span.version)
                else:
                    self.skipped_tokens += span.end - span.start
        for row, of_row in versions.items():
            for version in of_row:
                self._draw(version, (subject.session_id, row))

    def drawn(self) -> Iterator[tuple[int, list[_Reference]]]:
        for version in sorted(self._drawn):
            yield version, sorted(self._drawn[version])

    def _draw(self, version: int, reference: _Reference) -> None:
        drawn, seen = self._drawn[version], self._seen[version]
        self._seen[version] += 1
        if len(drawn) < self._max_rows:
            drawn.append(reference)
        elif (place := self._random.randrange(seen + 1)) < self._max_rows:
            drawn[place] = reference


def check_rows(subject: Subject, row: int, version: int, log: SwapLog) -> list[CheckRow]:
    """The tokens of a row that `version` sampled, one CheckRow per temperature."""
    by_temperature: dict[float, list[tuple[Piece, Call]]] = defaultdict(list)
    for piece in subject.attribution.pieces:
        call = subject.trajectory.calls[piece.call]
        if piece.row == row and _comparable(call, version, log):
            by_temperature[call.sampling.temperature].append((piece, call))
    rows = []
    for temperature, pieces in sorted(by_temperature.items()):
        token_ids = subject.trajectory.rows[row].token_ids
        mask, logprobs = [0] * len(token_ids), [0.0] * len(token_ids)
        for piece, call in pieces:
            for span in call.versions:
                if span.version == version and call.logprobs is not None:
                    start, end = piece.start + span.start, piece.start + span.end
                    mask[start:end] = [1] * (end - start)
                    logprobs[start:end] = call.logprobs[span.start : span.end]
        if any(mask):
            rows.append(CheckRow(token_ids=token_ids, check_mask=mask, logprobs=logprobs, temperature=temperature))
    return rows


def examine(
    sampler: RowSampler,
    checkpoints: Mapping[int, Path],
    load: Callable[[str], Subject],
    log: SwapLog,
    check: LogprobCheck,
    *,
    tolerance: float,
) -> Verdict:
    """`load` gets a trajectory by session id. Raises AuditError when the check answers with a wrong number of rows."""
    verdict = Verdict()
    worst = 0.0
    for version, references in sampler.drawn():
        rows: list[CheckRow] = []
        names: list[_Reference] = []
        for session_id, row in references:
            found = check_rows(load(session_id), row, version, log)
            rows += found
            names += [(session_id, row)] * len(found)
        if not rows:
            verdict.notes.append(f"v{version}: no comparable row")
            continue
        differences = check(checkpoints[version], rows)
        if len(differences) != len(rows):
            raise AuditError(
                f"the logprob check of v{version} gave {len(differences)} differences for {len(rows)} rows"
            )
        verdict.items += sum(sum(row.check_mask) for row in rows)
        for (session_id, row), difference in zip(names, differences, strict=True):
            worst = max(worst, difference) if math.isfinite(difference) else math.inf
            if not difference <= tolerance:
                detail = f"row {row}: recorded logprobs differ from v{version}'s forward pass by {difference:.3g}"
                verdict.findings.append(Finding(NAME, session_id, f"{detail}, tolerance {tolerance:g}"))
    if verdict.items:
        verdict.notes.append(f"largest difference {worst:.2g}")
    if sampler.skipped_tokens:
        verdict.notes.append(f"{sampler.skipped_tokens} tokens not comparable (swap mode keep, or reshaped sampling)")
    return verdict


def _comparable(call: Call, version: int, log: SwapLog) -> bool:
    neutral = Sampling()
    names = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    plain = all(getattr(call.sampling, name) == getattr(neutral, name) for name in names)
    return plain and call.sampling.temperature > 0 and log.rebuilt(call.engine_id, version)
