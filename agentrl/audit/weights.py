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
from typing import Protocol

from agentrl.audit.attribution import Piece
from agentrl.audit.finding import Finding, Subject, Verdict
from agentrl.audit.spans import by_engine
from agentrl.audit.swap_log import SwapLog
from agentrl.errors import AuditError
from agentrl.types import Call, Row, Trajectory, VersionSpan

NAME = "weights"


class LogprobCheck(Protocol):
    """A forward pass to compare with; entry-point group `agentrl.logprob_checks`."""

    def __call__(
        self, model_dir: Path, rows: Sequence[Row], temperatures: Sequence[float], version: int
    ) -> list[float | None]:
        """Per row the largest |recorded - recomputed| over its trained tokens of `version`; None where it has none."""
        ...


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
            for engine_id, span in by_engine(call):
                if span.version not in self._drawn:
                    continue
                if _comparable(call, engine_id, span.version, self._log):
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


def comparable_rows(subject: Subject, row: int, version: int, log: SwapLog) -> list[tuple[Row, float]]:
    """A stored row with only the tokens that `version` sampled left in it, once per temperature, and that."""
    pieces: dict[float, list[Piece]] = defaultdict(list)
    for piece in subject.attribution.pieces:
        call = subject.trajectory.calls[piece.call]
        if piece.row == row:
            pieces[call.sampling.temperature].append(piece)
    narrowed = [(_narrow(subject.trajectory, row, pieces[each], version, log), each) for each in sorted(pieces)]
    return [(narrow, temperature) for narrow, temperature in narrowed if narrow.versions]


def _narrow(trajectory: Trajectory, row: int, pieces: Sequence[Piece], version: int, log: SwapLog) -> Row:
    token_ids = trajectory.rows[row].token_ids
    narrow = Row(token_ids=token_ids, loss_mask=[0] * len(token_ids), logprobs=[None] * len(token_ids), versions=[])
    for piece in pieces:
        call = trajectory.calls[piece.call]
        for engine_id, span in by_engine(call):
            comparable = span.version == version and _comparable(call, engine_id, version, log)
            if comparable and call.logprobs is not None:
                start, end = piece.start + span.start, piece.start + span.end
                narrow.loss_mask[start:end] = [1] * (end - start)
                narrow.logprobs[start:end] = call.logprobs[span.start : span.end]
                narrow.versions.append(VersionSpan(version, start, end))
    return narrow


def examine(
    sampler: RowSampler,
    directories: Mapping[int, Path],
    load: Callable[[str], Subject],
    log: SwapLog,
    check: LogprobCheck,
    *,
    tolerance: float,
) -> Verdict:
    """`load` gets a trajectory by session id. A version whose check fails is a finding.

    Raises AuditError when the check answers with a wrong number of rows.
    """
    verdict, worst = Verdict(), 0.0
    for version, references in sampler.drawn():
        rows: list[Row] = []
        temperatures: list[float] = []
        names: list[_Reference] = []
        for session_id, index in references:
            for row, temperature in comparable_rows(load(session_id), index, version, log):
                rows.append(row)
                temperatures.append(temperature)
                names.append((session_id, index))
        if not rows:
            verdict.notes.append(f"v{version}: no comparable row")
            continue
        try:
            differences = check(directories[version], rows, temperatures, version)
        except Exception as error:  # half-written weights fail in as many ways as there are libraries to read them
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            detail = f"v{version} at {directories[version]} gives no logprobs to compare with: {why}"
            verdict.findings.append(Finding(NAME, "", detail))
            continue
        if len(differences) != len(rows):
            raise AuditError(f"the logprob check of v{version} answered {len(differences)} of {len(rows)} rows")
        verdict.items += sum(sum(row.loss_mask) for row in rows)
        for (session_id, index), difference in zip(names, differences, strict=True):
            found = math.inf if difference is None or not math.isfinite(difference) else difference
            worst = max(worst, found)
            if found > tolerance:
                detail = f"row {index}: recorded logprobs differ from v{version}'s forward pass by {difference}"
                verdict.findings.append(Finding(NAME, session_id, f"{detail}, tolerance {tolerance:g}"))
    if verdict.items:
        verdict.notes.append(f"largest difference {worst:.2g}")
    if sampler.skipped_tokens:
        verdict.notes.append(f"{sampler.skipped_tokens} tokens not comparable (swap mode keep, or reshaped sampling)")
    return verdict


def _comparable(call: Call, engine_id: str, version: int, log: SwapLog) -> bool:
    plain = not call.sampling.reshaping and call.sampling.temperature > 0
    return plain and log.rebuilt(engine_id, version)
