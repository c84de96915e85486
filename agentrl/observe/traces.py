"""Writes a run's traces beside the run: from a thread, in bounds, and never at the run's cost."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Protocol

from agentrl.observe import perfetto
from agentrl.observe.bounded_file import BoundedFile
from agentrl.observe.config import TracesConfig
from agentrl.observe.episode_time import Pauses, nanoseconds
from agentrl.observe.spans import Attributes, Span, traces_data
from agentrl.observe.step_trace import EvaluationTrace, GroupTrace, StepTrace
from agentrl.observe.timed import TimedGroup, timed
from agentrl.observe.trace_spans import span_of_evaluation, spans_of_group, spans_of_step
from agentrl.types import SwapRecord

logger = logging.getLogger(__name__)

SPANS, TRACE = "spans.jsonl", "trace.json"
WAITING = 8
"""Steps and evaluations that may wait to be written; one that comes then is left out."""
CLOSE_S = 20.0
_FILES = 4  # two of them, and of each the one before


class Traces(Protocol):
    """Takes what the loop says of its steps and evaluations. Never raises, and waits for nothing."""

    counts: dict[str, int]
    """Steps and evaluations that were `written`, `left_out` (sampling, or too many at once) and `failed`."""

    def stepped(self, step: StepTrace) -> None: ...

    def evaluated(self, evaluation: EvaluationTrace) -> None: ...

    def close(self) -> None: ...


class NoTraces:
    """Where they are switched off."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def stepped(self, step: StepTrace) -> None:
        pass

    def evaluated(self, evaluation: EvaluationTrace) -> None:
        pass

    def close(self) -> None:
        pass


def open_traces(
    directory: Path, config: TracesConfig, *, run: str, swaps: Callable[[int], Sequence[SwapRecord]]
) -> Traces:
    return TraceWriter(directory, config, run=run, swaps=swaps) if config.enabled else NoTraces()


class TraceWriter:
    """Into `directory`. `swaps(n)` gives the run's swap log so far without its first n, in the writer's thread.

    What fails (a full disk) is counted and said once in the log; the run goes on.
    """

    def __init__(
        self, directory: Path, config: TracesConfig, *, run: str, swaps: Callable[[int], Sequence[SwapRecord]]
    ) -> None:
        self.counts = {"written": 0, "left_out": 0, "failed": 0}
        self._config = config
        self._run = run
        self._resource: Attributes = {
            "service.name": "agentrl",
            "service.version": metadata.version("agentrl"),
            "service.instance.id": run,
        }
        self._swaps = swaps
        self._known_swaps = 0
        self._pauses = Pauses()
        self._picture = perfetto.Picture(run)
        bound = config.max_mb * 2**20 // _FILES
        self._spans = BoundedFile(directory / SPANS, max_bytes=bound)
        self._trace = BoundedFile(
            directory / TRACE, max_bytes=bound, separator=perfetto.SEPARATOR, head=self._new_picture
        )
        self._waiting: queue.Queue[StepTrace | EvaluationTrace | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._write_all, name="traces", daemon=True)
        self._thread.start()

    def stepped(self, step: StepTrace) -> None:
        if step.step % self._config.every:
            self.counts["left_out"] += 1
        else:
            self._put(step)

    def evaluated(self, evaluation: EvaluationTrace) -> None:
        self._put(evaluation)

    def close(self) -> None:
        """Returns when all is written, in bounds."""
        try:
            self._waiting.put(None, timeout=CLOSE_S)
        except queue.Full:
            logger.warning("the traces' writer is stuck; the last %d steps have none", WAITING)
            return
        self._thread.join(CLOSE_S)

    def _put(self, item: StepTrace | EvaluationTrace) -> None:
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self.counts["left_out"] += 1

    def _write_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                whole = self._write(item)
            except Exception as error:  # whatever it is, the run does not end of it
                if not self.counts["failed"]:
                    logger.exception("traces cannot be written (%s); further failures are only counted", error)
                self.counts["failed"] += 1
            else:
                self.counts["written" if whole else "left_out"] += 1
        try:
            self._spans.close()
            self._trace.close(perfetto.last_line(time.time_ns()))
        except OSError as error:
            logger.warning("the traces were not closed: %s", error)

    def _write(self, item: StepTrace | EvaluationTrace) -> bool:
        """False for what is larger than a file may be."""
        news = self._swaps(self._known_swaps)
        self._known_swaps += len(news)
        for swap in news:
            self._pauses.add(swap)
        groups = [timed(group, self._pauses) for group in item.groups]
        events = self._picture.swaps(news)
        if isinstance(item, StepTrace):
            lines = [self._line(spans_of_step(self._run, item)), *self._lines_of_step(item, groups)]
            events += self._picture.step(item, groups)
        else:
            lines = [self._line([span_of_evaluation(self._run, item)]), *map(self._line_of_group, groups)]
            events += self._picture.evaluation(item, groups)
        return all((self._spans.append(b"".join(lines)), self._trace.append(perfetto.lines(events))))

    def _lines_of_step(self, step: StepTrace, groups: Sequence[TimedGroup]) -> list[bytes]:
        taken = next((nanoseconds(phase.end) for phase in step.phases if phase.name == "wait"), None)
        return [
            self._line_of_group(group, step=step.step, taken=taken if _trained(group.trace) else None)
            for group in groups
        ]

    def _line_of_group(self, group: TimedGroup, *, step: int | None = None, taken: int | None = None) -> bytes:
        return self._line(spans_of_group(self._run, group, self._pauses, step=step, taken=taken))

    def _line(self, spans: list[Span]) -> bytes:
        return traces_data(self._resource, spans)

    def _new_picture(self) -> bytes:
        return perfetto.HEAD + perfetto.lines(self._picture.names())


def _trained(group: GroupTrace) -> bool:
    return group.outcome == "trained"
