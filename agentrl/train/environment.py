"""The `[environment]` section of a run: where tasks come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from agentrl.section import Section


class SourceConfig(Section):
    """One of several sources that training tasks are drawn from. What it leaves out is as `[environment]` says, options
    and files only where that is the same environment."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=40)
    """What tasks and metrics call it. A task's id begins with it."""

    weight: float = Field(default=1.0, gt=0)
    """Its share of the tasks, beside the other weights."""

    id: str | None = None
    """The environment."""

    options: dict[str, object] | None = None
    """Keyword arguments of the environment's constructor."""

    train_split: str | None = None
    """The split that training tasks are drawn from."""

    eval_split: str | None = None
    """The split of the held-out tasks."""

    train_tasks: Path | None = None
    """A JSONL or Parquet file with a row for each training task."""

    eval_tasks: Path | None = None
    """A file with the held-out tasks."""


class CurriculumConfig(Section):
    """How a mix's shares follow what the policy can do."""

    prefer: Literal["weights", "learnable"] = "weights"
    """`weights` leaves the shares as they are; `learnable` multiplies each with the share of the source's recent groups
    in which some attempts succeeded and some did not (`evaluation.success_reward`)."""

    floor: float = Field(default=0.1, gt=0, le=1)
    """The least factor, so that a source that was too easy or too hard is looked at again."""

    window: int = Field(default=32, ge=1)
    """Groups of a source over which that share is averaged, the later ones weighing more."""


@dataclass(frozen=True)
class Source:
    """A resolved source of tasks; of an environment without a mix the only one, without a name."""

    name: str
    weight: float
    id: str
    options: Mapping[str, object]
    train_split: str
    eval_split: str
    train_tasks: Path | None
    eval_tasks: Path | None


class EnvironmentConfig(Section):
    """Where tasks come from."""

    id: str
    """A gymnasium id (`agentrl/Calculator-v0`), `module:Class`, or `path/to/file.py:Class`."""

    options: dict[str, object] = Field(default_factory=dict)
    """Keyword arguments of the environment's constructor."""

    train_split: str = "train"
    """The split that training tasks are drawn from."""

    eval_split: str = "eval"
    """The split of the held-out tasks."""

    train_tasks: Path | None = None
    """A JSONL or Parquet file with a row for each training task, instead of the environment's own."""

    eval_tasks: Path | None = None
    """A file with the held-out tasks, instead of the environment's own."""

    mix: tuple[SourceConfig, ...] = ()
    """Several sources to draw training tasks from; none is `[environment]` alone."""

    curriculum: CurriculumConfig = CurriculumConfig()

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(self._resolved(source) for source in self.mix) or (self._resolved(None),)

    def _resolved(self, source: SourceConfig | None) -> Source:
        """None is the environment itself."""
        given = {} if source is None else source.model_dump(exclude_none=True)
        another = given.get("id", self.id) != self.id
        own = {
            "id": self.id,
            "options": {} if another else self.options,
            "train_split": self.train_split,
            "eval_split": self.eval_split,
            "train_tasks": None if another else self.train_tasks,
            "eval_tasks": None if another else self.eval_tasks,
        }
        return Source(**{"name": "", "weight": 1.0, **own, **given})

    @model_validator(mode="after")
    def _sources_have_names_of_their_own(self) -> EnvironmentConfig:
        names = [source.name for source in self.mix]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"mix names {twice[0]!r} twice; give each source a name of its own")
        return self

    @model_validator(mode="after")
    def _splits_differ(self) -> EnvironmentConfig:
        for source in self.sources:
            of_source = f" of mix source {source.name!r}" if source.name else ""
            if source.train_split == source.eval_split:
                raise ValueError(
                    f"train_split and eval_split{of_source} are both {source.eval_split!r}; held-out tasks need a "
                    "split of their own"
                )
            if source.train_tasks is not None and source.train_tasks == source.eval_tasks:
                raise ValueError(
                    f"train_tasks and eval_tasks{of_source} are both {source.eval_tasks}; held-out tasks need a "
                    "file of their own"
                )
        return self
