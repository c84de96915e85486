"""What plugs into the platform, by name: an entry point of a group, or code of the user's own as in `loading`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from agentrl import loading
from agentrl.errors import ConfigError


def later(group: str, name: str) -> str:
    """`name` for what another process loads: known here, and the same from any working directory. Loads nothing.

    Raises ValueError, as validators do, naming the known names when there is none.
    """
    known = {point.name for point in entry_points(group=group)}
    if name in known or ":" in name:
        return loading.absolute(name)
    raise ValueError(_unknown(group, name, known))


def load(group: str, name: str) -> Any:
    """The class or function registered as `name` under entry-point group `group`, or at `module:attribute`.

    Raises ConfigError naming the known names when there is none, and when what is there cannot be loaded or called.
    """
    known = {point.name: point for point in entry_points(group=group)}
    if name in known:
        return loading.load(known[name].value, group)
    if ":" not in name:
        raise ConfigError(_unknown(group, name, known))
    return loading.load(name, group)


def _unknown(group: str, name: str, known: Iterable[str]) -> str:
    return (
        f"no {group} is called {name!r}; known: {', '.join(sorted(known)) or 'none'}; "
        "your own is named as 'module:name' or 'path/to/file.py:name'"
    )
