"""A sandbox from one blocking function: `run` gives it a thread, and kills the program when it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Unpack

from agentrl.errors import SandboxFault
from agentrl.sandbox import workfolder
from agentrl.sandbox.base import RunOptions, SandboxRequest, SandboxResult
from agentrl.sandbox.pump import Pump
from agentrl.sandbox.supervise import Outcome
from agentrl.sandbox.watch import signal_of

_PATIENCE_S = 60.0  # seconds that a run waits for its turn


class ThreadedSandbox(ABC):
    """At most `at_once` programs run at a time; more wait for their turn, their own time limits not running yet."""

    def __init__(self, at_once: int = 64) -> None:
        self._turns = threading.BoundedSemaphore(at_once)

    @abstractmethod
    def execute(self, request: SandboxRequest, cancelled: threading.Event) -> SandboxResult:
        """Runs one program to its end, which comes soon once `cancelled` is set. Called in any thread."""

    def run_blocking(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> SandboxResult:
        return self._in_turn(SandboxRequest.of(argv, **options), threading.Event())

    async def run(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> SandboxResult:
        request = SandboxRequest.of(argv, **options)
        cancelled = threading.Event()
        future: Future[SandboxResult] = Future()

        def work() -> None:
            try:
                future.set_result(self._in_turn(request, cancelled))
            except BaseException as error:
                future.set_exception(error)

        # A thread of its own: the loop's pool may be full of calls that wait for this one.
        threading.Thread(target=work, name="agentrl-sandbox", daemon=True).start()
        waiter = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([waiter], timeout=5)  # nothing of the program outlives the task that ran it
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # looked at: nobody else will
            raise

    def _in_turn(self, request: SandboxRequest, cancelled: threading.Event) -> SandboxResult:
        waited = 0.0
        while not self._turns.acquire(timeout=0.1):
            waited += 0.1
            if cancelled.is_set() or waited > _PATIENCE_S:
                raise SandboxFault(f"a program waited {waited:.0f} s for its turn in the sandbox; run fewer at a time")
        try:
            return self.execute(request, cancelled)
        finally:
            self._turns.release()


def result_of(request: SandboxRequest, outcome: Outcome, pump: Pump, work: Path) -> SandboxResult:
    """The result of a run whose processes are dead, with what `work` holds. Saves the workspace."""
    files, left_out = workfolder.collect(work, request.collect, request.limits)
    if request.workspace is not None:
        left_out = max(left_out, workfolder.save(work, request.workspace, request.limits))
    return SandboxResult(
        verdict=outcome.ending.verdict,
        reason=outcome.ending.reason,
        exit_code=outcome.exit_code,
        signal=None if outcome.exit_code is None else signal_of(outcome.exit_code),
        stdout=pump.stdout.text,
        stderr=pump.stderr.text,
        truncated=bool(pump.stdout.dropped or pump.stderr.dropped),
        wall_s=outcome.wall_s,
        cpu_s=outcome.cpu_s,
        files=files,
        left_out=left_out,
    )
