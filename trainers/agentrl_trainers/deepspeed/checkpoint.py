"""What a trainer needs to go on: its engines' weights and optimizer states, its own state, its random numbers.

Independent of the layout: each parameter is saved whole under its name, in float32, and every rank takes its share of
it when it loads. Files are safetensors and JSON; nothing is unpickled. They are sealed by who asked for them
(`agentrl.manifest`), once everything else of the checkpoint lies beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file

from agentrl.errors import CheckpointError
from agentrl_trainers.adapter_identity import adapter_identity, other_adapter
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed import random_states
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.deepspeed.states import ParameterStates, Values, states_of

FORMAT = 1
STATE = "state.json"
SHARD_BYTES = 1 << 30  # of a file; what rank 0 holds at most while saving, plus one parameter with its states


class Saveable(Protocol):
    """`DeepSpeedTrainer`, as far as a checkpoint is concerned."""

    config: TrainerConfig
    model_path: Path  # the model that the run began with

    def engines(self) -> dict[str, ZeroEngine]: ...

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


def save(trainer: Saveable, directory: Path, version: int) -> None:
    """Write everything into `directory`, which rank 0 makes. All ranks together.

    Raises TrainerError when the optimizer has states that belong to no parameter.
    """
    if dist.get_rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
    engines = trainer.engines()
    files = {name: _save_engine(name, states_of(zero), directory) for name, zero in engines.items()}
    generators = random_states.gather(next(iter(engines.values())).device)
    if dist.get_rank() == 0:
        state = {
            "format": FORMAT,
            "version": version,
            "optimizer": trainer.config.optimizer,
            "adapter": adapter_identity(trainer.config.lora, trainer.model_path),
            "trainer": trainer.state(),
            "files": files,
            "random": generators,
        }
        (directory / STATE).write_text(json.dumps(state) + "\n")
    dist.barrier()


def load(trainer: Saveable, directory: Path) -> int:
    """Put a trainer that has made no step yet where the saved one was; return its version. All ranks together.

    Ranks and ZeRO stage may be others than they were; a rank that was not there keeps its own random numbers. Learning
    rate and the like are those of the trainer's configuration. Raises CheckpointError when what is saved does not fit.
    """
    state = _read_state(directory)
    if state["optimizer"] != trainer.config.optimizer:
        raise CheckpointError(
            f"{directory} holds the states of optimizer {state['optimizer']!r}, the trainer has "
            f"{trainer.config.optimizer!r}; set trainer.optimizer to the first, or start from the weights alone"
        )
    if odd := other_adapter(state.get("adapter"), adapter_identity(trainer.config.lora, trainer.model_path)):
        raise CheckpointError(f"{directory} {odd}")
    engines = trainer.engines()
    if engines.keys() != state["files"].keys():
        raise CheckpointError(
            f"{directory} holds {sorted(state['files'])}, the trainer trains {sorted(engines)}; "
            "give it the configuration that it was saved with"
        )
    for name, zero in engines.items():
        _load_engine(states_of(zero), directory, state["files"][name])
    trainer.load_state(state["trainer"])
    if dist.get_rank() < len(state["random"]):
        random_states.restore(state["random"][dist.get_rank()])
    dist.barrier()
    return int(state["version"])


def _save_engine(engine: str, states: ParameterStates, directory: Path) -> list[str]:
    """The files' names. A parameter is in one file with all its states, as `<key>/<parameter>`."""
    files: list[str] = []
    held: dict[str, torch.Tensor] = {}

    def write() -> None:
        files.append(f"{engine}-{len(files) + 1:05d}.safetensors")
        if dist.get_rank() == 0:
            save_file(held, directory / files[-1])
        held.clear()

    num_bytes = 0
    for name in states.parameters:
        values = states.read(name)
        size = sum(value.nbytes for value in values.values())
        if num_bytes and num_bytes + size > SHARD_BYTES:
            write()
            num_bytes = 0
        num_bytes += size
        if dist.get_rank() == 0:
            held |= {f"{key}/{name}": value.contiguous() for key, value in values.items()}
    write()
    return files


def _load_engine(states: ParameterStates, directory: Path, files: list[str]) -> None:
    _refuse_other_parameters(states, directory, files)
    for name, values in _values(directory, files):
        states.write(name, values)
    states.refresh()


def _values(directory: Path, files: list[str]) -> Iterator[tuple[str, Values]]:
    """Parameter after parameter, read when it is asked for."""
    for file in files:
        with _opened(directory / file) as opened:
            keys: dict[str, list[str]] = {}
            for entry in opened.keys():  # noqa: SIM118
                key, _, name = entry.partition("/")
                keys.setdefault(name, []).append(key)
            for name, of_name in keys.items():
                yield name, {key: opened.get_tensor(f"{key}/{name}") for key in of_name}


def _refuse_other_parameters(states: ParameterStates, directory: Path, files: list[str]) -> None:
    saved: dict[str, tuple[int, ...]] = {}
    for file in files:
        with _opened(directory / file) as opened:
            for entry in opened.keys():  # noqa: SIM118
                if entry.startswith("weight/"):
                    saved[entry.removeprefix("weight/")] = tuple(opened.get_slice(entry).get_shape())
    ours = {name: tuple(states.whole_shape(parameter)) for name, parameter in states.parameters.items()}
    if odd := sorted(name for name in saved.keys() | ours.keys() if saved.get(name) != ours.get(name)):
        raise CheckpointError(
            f"{directory} is of another model: {odd[0]} has shape {saved.get(odd[0])} there and {ours.get(odd[0])} in "
            "the trainer (None: it is not trained); start from the model that the run began with"
        )


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except Exception as error:  # safetensors raises a class of its own for a broken file
        raise CheckpointError(f"{path} cannot be read ({error}); restore it, or take another checkpoint") from error


def _read_state(directory: Path) -> dict[str, Any]:
    path = directory / STATE
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} holds no trainer state ({STATE} is not there): it was saved with "
            "checkpoint.trainer_state = false, and only its weights can be used"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); take another checkpoint") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is of format {state.get('format')}, this agentrl reads {FORMAT}; use the version that wrote it"
        )
    return state
