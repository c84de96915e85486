"""Published recipes as small tables: `preset = "dapo"` in a run file puts them beneath the file's own keys."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from agentrl.errors import ConfigError


def names() -> list[str]:
    return sorted(file.name.removesuffix(".toml") for file in files(__name__).iterdir() if file.name.endswith(".toml"))


def table(name: str) -> dict[str, Any]:
    """What a preset sets. Raises ConfigError for a name that is none."""
    if name not in names():
        raise ConfigError(f"preset = {name!r}: there is no such preset; known: {', '.join(names())}")
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text())


def beneath(data: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """Both merged, table by table; what `data` says itself, it keeps."""
    merged = dict(data)
    for key, value in preset.items():
        own = merged.get(key)
        if key not in merged:
            merged[key] = value
        elif isinstance(own, Mapping) and isinstance(value, Mapping):
            merged[key] = beneath(own, value)
    return merged
