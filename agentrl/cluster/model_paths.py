"""Models that a trainer's table names beside the policy, found before anything starts."""

from __future__ import annotations

from pydantic import BaseModel

from agentrl.assets import resolve_model
from agentrl.errors import ConfigError

KEYS = (("kl", "reference"), ("teacher", "model"), ("critic", "model"), ("dpo", "reference"))
OF_THE_RUN = {None, "initial", "policy"}
"""Values that name the run's own model, or none."""


def for_ranks(trainer: BaseModel) -> BaseModel:
    """`trainer` with every named model as an absolute path: ranks start in another directory.

    Raises ConfigError naming the key when there is no such model.
    """
    for table, key in KEYS:
        section = getattr(trainer, table, None)
        name = getattr(section, key, None)
        if not isinstance(section, BaseModel) or name in OF_THE_RUN:
            continue
        try:
            path = resolve_model(str(name))
        except ConfigError as error:
            raise ConfigError(f"trainer.{table}.{key}: {error}") from error
        trainer = trainer.model_copy(update={table: section.model_copy(update={key: str(path)})})
    return trainer
