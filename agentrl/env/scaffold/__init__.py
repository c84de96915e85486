"""The files that `agentrl env init` writes: templates in the folders beside this, one per kind of environment."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Literal

import jinja2

from agentrl.errors import ConfigError

Kind = Literal["tools", "code", "chat", "program"]

_SUFFIX = ".jinja"
_SHARED = "shared"


def write(name: str, kind: Kind, parent: Path) -> list[str]:
    """Writes the files to `parent / name`; returns the commands to type next.

    Raises ConfigError for a name that is no Python name in small letters, and when anything is there already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} cannot name an environment; use small letters, digits and _, as in 'word_count'")
    folder = parent / name
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} is there already, and is left alone; give another name, or --dir")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    commands = [
        f"agentrl env check {folder}/env.py:{class_name}",
        f"python -m pytest {folder}",
        f"agentrl env play {folder}/env.py:{class_name} --actions {folder}/actions.txt",
    ]
    rendered = _rendered(kind, {"name": name, "class_name": class_name, "folder": str(folder), "commands": commands})
    try:
        folder.mkdir(parents=True)
        for file, text in rendered.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; give another --dir") from None
    return commands


def _rendered(kind: Kind, values: Mapping[str, object]) -> dict[str, str]:
    """Texts by file name. A kind's own template goes before the shared one of the same name."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    texts: dict[str, str] = {}
    for source in (_SHARED, kind):
        for template in resources.files(__name__).joinpath(source).iterdir():
            if template.name.endswith(_SUFFIX):
                file = template.name.removesuffix(_SUFFIX).replace("test_env", f"test_{values['name']}")
                texts[file] = environment.from_string(template.read_text(encoding="utf-8")).render(values)
    return texts
