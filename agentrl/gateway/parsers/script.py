"""The base of the parsers: runs a family's grammar over what is fed, and reads the reasoning that comes first."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from agentrl.gateway.deltas import Delta
from agentrl.gateway.parsers.base import ParseOptions
from agentrl.gateway.parsers.json_call import NamedCall
from agentrl.gateway.parsers.source import NO_MARKS, Marks, Source, Steps
from agentrl.gateway.parsers.writer import Writer


class Script:
    """An OutputParser. Itself it reads reasoning only; a subclass says in `_answer` how calls are read."""

    think: ClassVar[dict[str, str]] = {"<think>": "</think>"}  # what opens reasoning → what ends it

    def __init__(self, options: ParseOptions) -> None:
        self.options = options
        self.source = Source()
        self.out = Writer(options.new_id)
        self.stopped = False
        self._thinking = False
        self._reasoning_end = 0
        self._steps = self._all()
        next(self._steps)

    def feed(self, text: str) -> list[Delta]:
        self.source.add(text)
        next(self._steps)
        return self.out.take()

    def finish(self, *, stopped: bool) -> list[Delta]:
        self.stopped = stopped
        self.source.ended = True
        next(self._steps, None)
        self.out.close()
        return self.out.take()

    @property
    def reasoning_end(self) -> int:
        return self.source.fed if self._thinking else self._reasoning_end

    def _answer(self) -> Steps[None]:
        """Reads what comes after the reasoning into `out`, to the end. Runs when there are tools to call."""
        yield from self._rest()

    def _all(self) -> Steps[None]:
        yield from self._reasoning()
        yield from self._answer() if self.options.tools else self._rest()

    def _rest(self) -> Steps[None]:
        """All that is left is content."""
        yield from self.source.until(NO_MARKS, self.out.content)

    def _reasoning(self) -> Steps[None]:
        source = self.source
        start = source.keep()
        self._thinking = self.options.in_reasoning
        yield from source.space()
        opened = yield from source.one_of(_marks(*self.think))
        if opened is None and not self.options.in_reasoning:
            source.back(start)
            source.drop()
            return
        source.drop()
        self._thinking = True
        ends = (self.think[opened],) if opened else self.think.values()
        yield from source.until(_marks(*ends), self.out.reasoning)
        self.out.end_reasoning()
        self._thinking = False
        self._reasoning_end = source.position


class BlockScript(Script):
    """One whose calls are blocks of marks and unquoted text, which is read once.

    What is no call is content up to where that shows. So what a block's values spell is never run as a call.
    """

    opens: ClassVar[str]

    def _answer(self) -> Steps[None]:
        while (yield from self.source.until(_marks(self.opens), self.out.content)):
            start = self.source.keep()
            call = yield from self._call()
            if call:
                self.out.call(*call)
            else:
                self.out.content(self.opens + self.source.taken(start))
            self.source.drop()

    def _call(self) -> Steps[NamedCall | None]:
        """Reads what is behind `opens`. None: it is no call, and is read up to what it should not have."""
        raise NotImplementedError


@lru_cache(64)
def _marks(*texts: str) -> Marks:
    return Marks(*texts)
