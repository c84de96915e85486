"""JSON in ASCII that reads back equal, at a tenth of the standard library's time where that can be had."""

from __future__ import annotations

import json
from typing import Any

import orjson

_slow = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def dumps(value: Any) -> str:
    """Of what may hold anything. ASCII, so that half a character from a client or a NUL survives every database.

    Raises ValueError for a NaN or an infinity, which would read back as null, TypeError for what is not JSON,
    RecursionError for what is nested too deep.
    """
    return _slow.encode(value)


def dumps_messages(value: Any) -> str:
    """The same of messages, and of what else came as JSON or is of our own making; most of it is plain text.

    orjson writes NaN as null and has UTF-8 only, so what has either in it is written by `dumps`.
    """
    try:
        written = orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return dumps(value)
    return dumps(value) if b"null" in written or not written.isascii() else written.decode("ascii")
