"""What every instance in the child shares: the plan, the author, the probes and the pipe."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

import gymnasium

from agentrl.env import registry
from agentrl.env.check.child.author import Author
from agentrl.env.check.child.emit import Emitter, ExitWatch
from agentrl.env.check.child.loop_watch import LoopWatch
from agentrl.env.check.child.seen import Seen
from agentrl.env.check.plan import Plan
from agentrl.env.check.records import Begin
from agentrl.env.program import Program


@dataclass
class Bench:
    plan: Plan
    author: Author
    emit: Emitter
    seen: Seen
    watch: LoopWatch
    dump: IO[bytes]
    exits: ExitWatch
    solve: Callable[..., Any] | None = None  # the reference solution
    section: str = ""
    task_id: str = ""
    policy: str = ""
    program: type[Program] | None = None  # where it is no environment
    make: Callable[[], gymnasium.Env[Any, Any] | Program] = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        if self.program is None:
            self.make = functools.partial(registry.make, plan.env_id, **plan.options)
        else:
            self.make = functools.partial(self.program, **self.program.placed(plan.options))

    def begin(self, method: str) -> None:
        self.emit(Begin(self.section, method, self.task_id, self.policy))
