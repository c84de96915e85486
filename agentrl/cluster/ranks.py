"""The trainer's processes of a run, on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agentrl.cluster.actors import TrainerActor
from agentrl.cluster.model_paths import for_ranks
from agentrl.cluster.ray_session import actor_class
from agentrl.cluster.site import Site


def ranks_of(trainer: BaseModel) -> int:
    """How many a trainer's table asks for: 1 where it has no such key."""
    return int(getattr(trainer, "ranks", 1))


def start_ranks(
    kind: str, trainer: BaseModel, *, model: Path, total_steps: int, logs: Path, site: Site | None = None
) -> list[Any]:
    """An actor for each rank, starting, at its place of `site`; kill them when done."""
    site = site or Site()
    size, settings, address = ranks_of(trainer), for_ranks(trainer), site.first_rank()
    return [
        actor_class(TrainerActor, **site.rank(rank)).remote(
            kind,
            settings,
            rank=rank,
            world_size=size,
            model=str(model),
            total_steps=total_steps,
            logs=logs,
            address=address,
            device=site.device(rank),
        )
        for rank in range(size)
    ]
