"""Which files are the author's, and which of their lines a stack goes through."""

from __future__ import annotations

import functools
import inspect
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, CoroutineType, FrameType, GeneratorType, ModuleType, TracebackType
from typing import Any

import agentrl
from agentrl.env.check.records import Place, Raised

_DEEPEST = 200  # frames of a stack that are looked at
_OURS = str(Path(agentrl.__file__).parent)
_INSTALLED = tuple(
    {
        os.path.realpath(path)
        for path in (*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), _OURS)
    }
)


class Author:
    """The folders that an environment's class and its bases are in, without the libraries in them."""

    def __init__(self, cls: type, made_by: Callable[..., Any] | None = None) -> None:
        """`made_by`: the function that makes the environment, or is the program, where it is no class."""
        files = [source_file(part) for part in ([] if made_by is None else [made_by]) + list(cls.__mro__)]
        own = [file for file in files if file is not None and not is_library(file)]
        # An environment that is itself installed or part of agentrl: its own files are the author's.
        self._files = set(own) or {file for file in files[:1] if file is not None}
        self._folders = {os.path.dirname(file) for file in own}

    def owns(self, file: str) -> bool:
        if file in self._files:
            return True
        return not is_library(file) and any(file.startswith(folder + os.sep) for folder in self._folders)

    def modules(self) -> list[ModuleType]:
        """The author's modules that are loaded, at most 50."""
        found = [module for module in list(sys.modules.values()) if self.owns(getattr(module, "__file__", None) or "")]
        return found[:50]

    def of_frame(self, frame: FrameType | None) -> Place | None:
        """The innermost line of the author's in a running stack."""
        for _ in range(_DEEPEST):
            if frame is None:
                return None
            if self.owns(frame.f_code.co_filename):
                return _place(frame.f_code, frame.f_lineno)
            frame = frame.f_back
        return None

    def of_traceback(self, traceback: TracebackType | None) -> Place | None:
        found = None
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if self.owns(code.co_filename):
                found = _place(code, traceback.tb_lineno)
            traceback = traceback.tb_next
        return found

    def of_coroutine(self, coroutine: Any) -> Place | None:
        """The innermost line of the author's that a suspended coroutine waits in."""
        found = None
        while isinstance(coroutine, CoroutineType | GeneratorType):
            frame = coroutine.cr_frame if isinstance(coroutine, CoroutineType) else coroutine.gi_frame
            if frame is not None and self.owns(frame.f_code.co_filename):
                found = _place(frame.f_code, frame.f_lineno)
            coroutine = coroutine.cr_await if isinstance(coroutine, CoroutineType) else coroutine.gi_yieldfrom
        return found

    def raised(self, error: BaseException) -> Raised:
        place = self.of_traceback(error.__traceback__)
        cause = error.__cause__ or error.__context__
        if place is None and cause is not None:
            place = self.of_traceback(cause.__traceback__)
        return Raised(type(error).__name__, _text(error), place)


@functools.cache
def is_library(file: str) -> bool:
    """Whether this is Python's, an installed package's or agentrl's own file."""
    real = os.path.realpath(file)
    return file.startswith("<") or any(real.startswith(folder + os.sep) for folder in _INSTALLED)


def first_line(traceback: TracebackType | None) -> Place | None:
    """The innermost line that is no library's, while it is not known who the author is."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_library(code.co_filename):
            found = _place(code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def first_frame(frame: FrameType | None) -> Place | None:
    """As `first_line`, of a running stack."""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return _place(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return None


def source_file(cls: Callable[..., Any]) -> str | None:
    try:
        return inspect.getsourcefile(cls)
    except TypeError:
        return None


def author_bases(cls: type, author: Author) -> Iterator[type]:
    return (base for base in cls.__mro__ if author.owns(source_file(base) or ""))


def _place(code: CodeType, line: int) -> Place:
    return Place(code.co_filename, line, code.co_qualname)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except Exception:  # its `__str__` is the environment's code too
        return ""
