"""`python -m agentrl.env.check.child PLAN`: plays the plan and ends. Started by `runner` only."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import msgspec

from agentrl.env import registry
from agentrl.env.check.child import reference
from agentrl.env.check.child.author import Author, first_line
from agentrl.env.check.child.bench import Bench
from agentrl.env.check.child.emit import Emitter, ExitWatch, PrintedText
from agentrl.env.check.child.instance import Instance
from agentrl.env.check.child.loop_watch import LoopWatch
from agentrl.env.check.child.sections import PROGRAM_SECTIONS, SECTIONS
from agentrl.env.check.child.seen import Seen
from agentrl.env.check.child.source import places_of, suspects_of
from agentrl.env.check.plan import HUNG_STATUS, Plan
from agentrl.env.check.records import Begin, CallRecord, EpisodeRecord, Place, Refused, SectionDone, Subject
from agentrl.env.program import Program
from agentrl.errors import ConfigError


def main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    child = _Child(plan)
    with open(plan.dump_file, "wb") as dump:
        faulthandler.enable(dump)
        child.run(dump)
    child.exits.leave(0)  # without waiting for threads that the environment left


class _Child:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._emit = Emitter(plan.output)
        self.exits = ExitWatch(self._emit)
        self._printed = PrintedText(self._emit)
        self._seen = Seen()
        sys.stdout = self._printed

    def run(self, dump: IO[bytes]) -> None:
        self._emit(Begin("start", "import"))
        started = time.perf_counter()
        faulthandler.dump_traceback_later(self._plan.start_s, exit=True, file=dump)
        try:
            creator = registry.env_class(self._plan.env_id)
            program = registry.program(self._plan.env_id)
        except ConfigError as error:
            cause = error.__cause__
            place = None if cause is None else _raised_in(cause)
            ours = cause is None or (isinstance(cause, ImportError) and place is None)  # no line of the author's ran
            self._emit(Refused(str(error), place, config=ours))
            return
        finally:
            faulthandler.cancel_dump_traceback_later()
        asyncio.run(self._play(dump, creator, program, import_ms=1000 * (time.perf_counter() - started)))

    async def _play(
        self, dump: IO[bytes], creator: Callable[..., Any], program: type[Program] | None, import_ms: float
    ) -> None:
        made_by = None if isinstance(creator, type) else creator
        author = Author(creator if isinstance(creator, type) else type(None), made_by)
        bench = Bench(self._plan, author, self._emit, self._seen, LoopWatch(), dump, self.exits, program=program)
        bench.section = "start"
        self._know(bench, author)
        instance = Instance(bench)
        made = await instance.make()
        if made.hung:
            self._emit(EpisodeRecord(kind="alone", task_id="", policy="", calls=[made]))
            self.exits.leave(HUNG_STATUS)
        if instance.env is None:
            self._emit(_not_made(made))
            return
        env = getattr(instance.env, "unwrapped", instance.env)
        self._know(bench, Author(type(env), made_by))
        self._emit(self._subject(bench, env, made_by, import_ms, made.wall_ms))
        await instance.close()
        instance.retire()
        for section in self._plan.sections:
            bench.section = section
            bench.task_id = bench.policy = ""
            bench.begin("")
            await (SECTIONS if program is None else PROGRAM_SECTIONS)[section](bench)
            self._emit(SectionDone(section))
        bench.watch.stop()

    def _know(self, bench: Bench, author: Author) -> None:
        bench.author = bench.watch.author = self.exits.author = self._printed.author = self._seen.author = author

    def _subject(
        self, bench: Bench, env: Any, made_by: Callable[..., Any] | None, import_ms: float, make_ms: float
    ) -> Subject:
        cls = type(env)
        doc = vars(cls).get("__doc__") if made_by is None else made_by.__doc__  # not a base class's
        found = reference.find(cls)
        bench.solve = None if found is None else found[1]
        return Subject(
            name=getattr(made_by or cls, "__name__", cls.__name__),
            documented=bool((doc or "").strip()),
            reference="" if found is None else found[0],
            reward_range=_reward_range(env),
            roles=bool(getattr(cls, "roles", None)),
            places=places_of(cls, bench.author, made_by),
            suspects=suspects_of(bench.author),
            import_ms=import_ms,
            make_ms=make_ms,
        )


def _raised_in(error: BaseException) -> Place | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return Place(error.filename, error.lineno)
    return first_line(error.__traceback__)


def _not_made(made: CallRecord) -> Refused:
    why = made.raised
    if why is None:
        return Refused("its constructor gave no gymnasium.Env")
    text = why.text if why.type == "ConfigError" else f"{why.type}: {why.text}"
    return Refused(text, why.place, config=why.type == "ConfigError")


def _reward_range(env: Any) -> tuple[float, float] | None:
    try:
        low, high = env.reward_range
        return float(low), float(high)
    except (AttributeError, TypeError, ValueError):
        return None


if __name__ == "__main__":
    main()
