"""Model files that ship with the package, and the one place that turns a model's name into a directory."""

from __future__ import annotations

from pathlib import Path

from agentrl.errors import ConfigError

EMBEDDED = "agentrl:tiny"  # knows the calculator
CODER = "agentrl:tiny-coder"  # knows the easy tasks of agentrl/Sql-v0 and agentrl/PythonCode-v0

DIRECTORIES = {EMBEDDED: Path(__file__).parent / "tiny_policy", CODER: Path(__file__).parent / "tiny_coder"}
"""The embedded policies, built by tools/build_policy.py."""


def resolve_model(name: str) -> Path:
    """The directory of a model: an embedded one by its name, any other by its local path.

    Raises ConfigError when there is no such directory, or when it lacks a config or a tokenizer. Nothing is downloaded.
    """
    path = DIRECTORIES.get(name) or Path(name).expanduser()
    if not path.is_dir():
        raise ConfigError(
            f"model {name!r} is not a directory; give the path of a local Hugging Face model, or "
            f"{' or '.join(map(repr, DIRECTORIES))} for an embedded one"
        )
    missing = [file for file in ("config.json", "tokenizer.json") if not (path / file).is_file()]
    if missing:
        raise ConfigError(
            f"model directory {name!r} has no {' and no '.join(missing)}; export the model and its fast tokenizer "
            "there with save_pretrained"
        )
    return path.resolve()
