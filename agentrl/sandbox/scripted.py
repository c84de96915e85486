"""The sandbox's in-memory twin: runs nothing, answers as it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Unpack

from agentrl.sandbox.base import RunOptions, SandboxRequest, SandboxResult

Answer = Callable[[SandboxRequest], SandboxResult]


class ScriptedSandbox:
    """Answers from a function, or one result after the other. `requests` holds what it was asked.

    Raises AssertionError when it is asked more often than it has results.
    """

    def __init__(self, answers: Answer | Iterable[SandboxResult]) -> None:
        self.requests: list[SandboxRequest] = []
        self._answer: Answer = answers if callable(answers) else _in_turn(iter(answers))

    async def run(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> SandboxResult:
        return self.run_blocking(argv, **options)

    def run_blocking(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> SandboxResult:
        asked = SandboxRequest.of(argv, **options)
        self.requests.append(asked)
        return self._answer(asked)


def _in_turn(results: Iterator[SandboxResult]) -> Answer:
    def answer(request: SandboxRequest) -> SandboxResult:
        try:
            return next(results)
        except StopIteration:
            raise AssertionError(f"the scripted sandbox has no result left for {request.argv}") from None

    return answer
