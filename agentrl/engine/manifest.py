"""Which tensors a swap must bring: names, shapes and number formats of the checkpoint that the engine started from."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from agentrl.errors import SwapError

Header = tuple[tuple[int, ...], str]
"""Shape and safetensors' name of the number format, e.g. `((512, 128), "F32")`."""

HEAD = "lm_head.weight"
FORMATS = {"torch.float32": "F32", "torch.bfloat16": "BF16", "torch.float16": "F16"}


@dataclass(frozen=True)
class Manifest:
    """Checkpoint names and their headers; those in `optional` may be left out."""

    tensors: Mapping[str, Header]
    optional: frozenset[str] = frozenset()

    @classmethod
    def of_checkpoint(cls, directory: Path, *, tied: bool) -> Manifest:
        """Reads headers only. With a tied head its alias may be sent or not. Raises SwapError without safetensors."""
        tensors: dict[str, Header] = {}
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, "np") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    part = file.get_slice(name)
                    tensors[name] = (tuple(part.get_shape()), part.get_dtype())
        if not tensors:
            raise SwapError(f"{directory} holds no .safetensors files; weights can be swapped only for such a model")
        optional: frozenset[str] = frozenset()
        if tied:
            embedding = next((name for name in tensors if name.endswith("embed_tokens.weight")), None)
            if embedding is not None:
                tensors.setdefault(HEAD, tensors[embedding])
            optional = frozenset({HEAD})
        return cls(tensors, optional)

    def check_group(self, group: Mapping[str, Header], *, already: Set[str], engine_dtype: Any) -> None:
        """Raises SwapError for a tensor that is unknown, came already, or has another shape or number format.

        The format may be the checkpoint's or the engine's own.
        """
        for name, (shape, number_format) in group.items():
            if name not in self.tensors:
                raise SwapError(f"the model has no tensor {name!r}")
            if name in already:
                raise SwapError(f"tensor {name!r} came twice in one version")
            expected_shape, expected_format = self.tensors[name]
            if shape != expected_shape:
                raise SwapError(f"tensor {name!r} has shape {list(shape)}, the model's has {list(expected_shape)}")
            if number_format not in (expected_format, FORMATS.get(str(engine_dtype))):
                raise SwapError(f"tensor {name!r} is {number_format}, the model's is {expected_format}")

    def check_complete(self, received: Set[str]) -> None:
        """Raises SwapError naming the first missing tensors."""
        missing = sorted(self.tensors.keys() - self.optional - received)
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise SwapError(f"the version is incomplete: no {', '.join(missing[:3])}{more}")
