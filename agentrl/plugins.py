"""Finds code by name: an entry point of a group, or `module:attribute`. How the platform reaches what plugs into it."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from agentrl.errors import ConfigError


def load(group: str, name: str) -> Any:
    """The object registered as `name` under entry-point group `group`, or at `module:attribute`.

    Raises ConfigError naming the known names when there is none, and when what is there cannot be loaded or called.
    """
    known = {point.name: point for point in entry_points(group=group)}
    if ":" not in name and name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"no {group} is called {name!r}; known: {names}; your own is named as 'module:attribute'")
    point = known.get(name) or EntryPoint(name, name, group)
    if point.pattern.match(point.value) is None:
        raise ConfigError(f"{name!r} of {group} is not of the form 'module:attribute'")
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # the module is somebody's own code
        raise ConfigError(f"{name!r} cannot be loaded for {group}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{name!r} of {group} is a {type(found).__name__}; name a function or a class")
    return found
