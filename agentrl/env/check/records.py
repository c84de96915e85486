"""What the child writes down and the checks read. Made by `child`, one JSON object a line; taken by `checks/`.

Everything here is data of the environment under test: the parent decodes it with these types and runs none of it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

Kind = Literal["alone", "repeat", "again", "again_repeat", "together", "reused", "leaks"]
"""Which episode this is: the first of its task and policy in a process, the second, the same two in another process,
one of two that take turns, one on an instance that was reset, one of a series that is watched for leaks."""

RewardKind = Literal["number", "missing", "not_finite", "not_a_number"]


class Place(Struct, frozen=True):
    """A line in the author's files."""

    file: str
    line: int  # from 1
    name: str = ""  # of the function

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Raised(Struct, frozen=True):
    """An exception that came out of the environment."""

    type: str
    text: str
    place: Place | None = None  # the innermost line in the author's files


class ToolRaised(Struct, frozen=True):
    """An exception that a tool raised, which `ToolEnv` told the policy."""

    tool: str
    arguments: str
    raised: Raised


class Breach(Struct, frozen=True):
    """The environment's contract broken by one value, found where the value was."""

    code: str
    text: str


class Effect(Struct, frozen=True):
    """Something outside the environment that a call changed."""

    what: Literal["cwd", "environ", "random", "numpy.random"]
    text: str
    place: Place | None = None


class Stall(Struct, frozen=True):
    """The event loop stood still for this long, without the time that the processor was somebody else's."""

    ms: float
    place: Place | None = None


class Mutation(Struct, frozen=True):
    """A message that was handed over before has another content now."""

    role: str
    before: str
    after: str


class CallRecord(Struct, kw_only=True):
    """One call of the environment and what came of it; or, as "ask", one call of the policy by an agent program."""

    method: str  # "__init__", "reset", "tools", "step", "close"; "run", "ask", "grade" of a program
    wall_ms: float = 0.0
    cpu_ms: float = 0.0  # of the whole process
    on_loop: bool = False
    action: dict[str, Any] | None = None
    observation: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    reward: float | None = None
    reward_kind: RewardKind = "missing"
    reward_text: str = ""
    terminated: bool = False
    truncated: bool = False
    raised: Raised | None = None
    hung: bool = False
    stack: Place | None = None  # where it hung
    breaches: list[Breach] = []
    effects: list[Effect] = []
    stalls: list[Stall] = []
    mutated: list[Mutation] = []
    tool_errors: list[ToolRaised] = []


class EpisodeRecord(Struct, kw_only=True, tag="episode"):
    kind: Kind
    task_id: str
    policy: str
    calls: list[CallRecord] = []
    ended: bool = False

    @property
    def steps(self) -> list[CallRecord]:
        """What may earn something: steps, and the grading of a program."""
        return [call for call in self.calls if call.method in ("step", "grade")]

    @property
    def total_reward(self) -> float | None:
        """The sum over the steps; missing when one is, or when there was none."""
        rewards = [step.reward for step in self.steps]
        known = [reward for reward in rewards if reward is not None]
        return sum(known) if known and len(known) == len(rewards) else None

    @property
    def failed(self) -> bool:
        return any(call.raised is not None or call.hung for call in self.calls)


class Suspect(Struct, frozen=True):
    """A call in the author's source whose result is another one next time."""

    kind: Literal["random", "unseeded", "clock", "unique", "hash", "set order", "directory order"]
    text: str
    place: Place


class Subject(Struct, kw_only=True, tag="subject"):
    """The environment's class, as the source shows it."""

    name: str
    documented: bool
    reference: str = ""  # where its reference solution is; "" for none
    reward_range: tuple[float, float] | None = None
    roles: bool = False  # it has several speakers
    places: dict[str, Place] = {}  # "class", a method's name, "tool NAME", "tool NAME.PARAMETER"
    suspects: list[Suspect] = []
    import_ms: float = 0.0
    make_ms: float = 0.0


class TasksRecord(Struct, kw_only=True, tag="tasks"):
    """One reading of a split's first tasks."""

    split: str
    process: int
    reading: int  # 0 the first, 1 the second of the same process
    ids: list[str] = []
    keys: list[str] = []  # seed and options as JSON, without the split
    asked: list[str] = []  # the first observation of each, for as many as were reset
    finite: bool = False
    error: str = ""
    place: Place | None = None


class Left(Struct, frozen=True):
    """Something that is still there after an episode."""

    what: Literal["thread", "process", "file", "socket", "task", "temporary"]
    name: str
    place: Place | None = None


class Growth(Struct, frozen=True):
    """Memory allocated by one line and still held."""

    kib: float
    place: Place


class Snapshot(Struct, kw_only=True, tag="snapshot"):
    """What is there after the episode `index` of the series watched for leaks; `index` -1 is before it."""

    index: int
    left: list[Left] = []
    traced_kib: float = 0.0  # Python's memory
    growth: list[Growth] = []  # since the third episode; in the last snapshot only


class StateChange(Struct, frozen=True, tag="state"):
    """A class attribute or module global that is not what it was before the episodes."""

    name: str
    before: str
    after: str
    place: Place | None = None


class GymnasiumRecord(Struct, kw_only=True, tag="gymnasium"):
    """What gymnasium's own checker said."""

    warnings: list[str] = []
    raised: Raised | None = None
    by_author: bool = False  # the exception came from the author's code
    second_close: Raised | None = None


class Printed(Struct, frozen=True, tag="printed"):
    text: str
    place: Place | None = None


class Begin(Struct, frozen=True, tag="begin"):
    """A call begins; the last one says what a process that dies was doing."""

    section: str
    method: str
    task_id: str = ""
    policy: str = ""


class Exiting(Struct, frozen=True, tag="exiting"):
    """The environment is ending the process."""

    place: Place | None = None


class Refused(Struct, frozen=True, tag="refused"):
    """The environment cannot be named, imported or made at all."""

    text: str
    place: Place | None = None
    config: bool = False  # the id is at fault, not the environment


class SectionDone(Struct, frozen=True, tag="done"):
    section: str


Line = (
    Begin
    | EpisodeRecord
    | Exiting
    | GymnasiumRecord
    | Printed
    | Refused
    | SectionDone
    | Snapshot
    | StateChange
    | Subject
    | TasksRecord
)


class Death(Struct, frozen=True):
    """A process of the environment that ended before its time. Made by `runner`."""

    how: Literal["exit", "signal", "hang"]
    status: int  # exit status, or the signal's number
    during: Begin
    place: Place | None = None
    limit_s: float = 0.0


class Recording(Struct, kw_only=True):
    """All that was seen of one environment."""

    env_id: str
    subject: Subject | None = None
    tasks: list[TasksRecord] = []
    episodes: list[EpisodeRecord] = []
    snapshots: list[Snapshot] = []
    state: list[StateChange] = []
    gymnasium: GymnasiumRecord | None = None
    printed: list[Printed] = []
    deaths: list[Death] = []
    refused: Refused | None = None

    def of(self, *kinds: Kind) -> list[EpisodeRecord]:
        return [episode for episode in self.episodes if episode.kind in kinds]

    def place(self, name: str) -> Place | None:
        """Where a method or tool is, else the class."""
        places = self.subject.places if self.subject is not None else {}
        return places.get(name) or places.get("class")


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Line).decode
