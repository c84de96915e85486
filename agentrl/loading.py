"""Code by name: `module:attribute`, or `path/to/file.py:attribute` for files that are in no package."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError

_RUNNING = threading.RLock()  # a file is run once, whichever thread asks first


def is_path(name: str) -> bool:
    """Whether it has one of these forms; gymnasium's own `module:Namespace/Name-v0` has not."""
    head, _, attribute = name.rpartition(":")
    return bool(head) and attribute.replace(".", "_").isidentifier()


def absolute(name: str) -> str:
    """The name as it works from any working directory: workers have their own."""
    head, _, attribute = name.rpartition(":")
    return f"{Path(head).expanduser().resolve()}:{attribute}" if head.endswith(".py") else name


def load(name: str, kind: str, *, base: type = object) -> Callable[..., Any]:
    """The class or function of this name.

    Raises ConfigError when there is none. It says what `kind` of thing was looked for, and what the module has instead:
    its subclasses of `base`, if any.
    """
    head, _, attribute = name.rpartition(":")
    what = f"{kind} {name!r}"
    if not head or not attribute:
        raise ConfigError(f"{what} is not of the form 'module:name' or 'path/to/file.py:name'")
    module = _file(Path(head).expanduser().resolve(), what) if head.endswith(".py") else _module(head, what)
    try:
        found = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise ConfigError(f"{what}: there is no {attribute!r} in it; it has {_offered(module, base)}") from None
    if not callable(found):
        raise ConfigError(f"{what} is a {type(found).__name__}; name a class or a function")
    return found


def load_from(name: str, directory: str | None, kind: str) -> Callable[..., Any]:
    """`load`, with relative paths below a directory instead of below the working directory."""
    head, _, attribute = name.rpartition(":")
    placed = f"{Path(directory or '.') / head}:{attribute}" if head.endswith(".py") else name
    return load(placed, kind)


def _offered(module: Any, base: type) -> list[str]:
    """What a person may have meant: what the module defines itself, or the subclasses of `base` in it."""
    callables = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    wanted = [name for name, value in callables.items() if isinstance(value, type) and issubclass(value, base)]
    own = [name for name, value in callables.items() if getattr(value, "__module__", None) == module.__name__]
    return (wanted if base is not object else []) or own


def _module(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{what} cannot be imported: {error}; install its package, or name its file as 'path/to/file.py:name'"
        ) from error
    except (Exception, SystemExit) as error:  # the module is somebody's own code
        raise ConfigError(f"{what}: importing {name} raised {type(error).__name__}: {error}") from error


def _file(path: Path, what: str) -> Any:
    """The file as a module, run once. Files next to it can be imported from it, as if it were run as a script."""
    if not path.is_file():
        raise ConfigError(f"{what}: there is no file {path}")
    name = f"agentrl_user_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    with _RUNNING:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            line = _line_in(path, error)
            raise ConfigError(f"{what}: running {path} raised {type(error).__name__}: {error}{line}") from error
    return module


def _line_in(path: Path, error: BaseException) -> str:
    """The line of the file that it was raised in. A SyntaxError says its own."""
    lines = [at for frame, at in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""
