"""Finds code by name: an entry point of a group, or `module:attribute`. How the platform reaches what plugs into it."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from agentrl.errors import ConfigError


def load(group: str, name: str) -> Any:
    """The object registered as `name` under entry-point group `group`, or at `module:attribute`.

    Raises ConfigError naming the known names when there is none.
    """
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{name!r} cannot be loaded for {group}: {error}") from error
    found = {point.name: point for point in entry_points(group=group)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError(f"no {group} is called {name!r}; known: {known}; your own is named as 'module:attribute'")
    return found[name].load()
