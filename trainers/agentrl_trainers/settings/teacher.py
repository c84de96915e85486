"""The teacher of on-policy distillation. Torch-free."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from agentrl.section import Section


class TeacherConfig(Section):
    """`[trainer.teacher]`: a model whose opinion of each sampled token is its advantage."""

    model: str | None = None
    """A local directory in Hugging Face form with the policy's tokenizer; unset is no teacher. Each rank holds a whole
    copy, whatever `zero_stage` is."""

    coefficient: float = Field(default=1.0, gt=0.0)
    """Weight of `teacher - policy` (logprobs) in the advantage of each token."""

    replace: bool = True
    """The teacher's opinion is the whole advantage; otherwise it is added to that of the rewards."""

    @model_validator(mode="after")
    def _read(self) -> Self:
        if self.model is None and (unread := self.changed("coefficient", "replace")):
            raise ValueError(f"{unread}: not read without teacher.model; set teacher.model, or leave it out")
        return self
