"""Where the driver of a run stood when it last wrote its books: one text, in the same transaction as they.

It is a line of the table `meta`, so stores of every layout have a place for it.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from agentrl.errors import StoreError
from agentrl.store import schema

_KEY = "position"


def as_text(position: bytes | None) -> str | None:
    """Raises StoreError for what is no text: it is JSON, which any SQL client can read."""
    if position is None:
        return None
    try:
        text = position.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"the position {position!r:.80} is not UTF-8 ({error}); give JSON") from error
    if "\0" in text:
        raise StoreError(f"the position {position!r:.80} holds a NUL; give JSON")
    return text


def write(connection: Connection, text: str | None) -> None:
    """None leaves the last one."""
    if text is None:
        return
    key = schema.meta.c.key
    if connection.execute(update(schema.meta).where(key == _KEY).values(value=text)).rowcount == 0:
        connection.execute(insert(schema.meta), {"key": _KEY, "value": text})


def read(connection: Connection) -> bytes | None:
    text = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == _KEY)).scalar_one_or_none()
    return None if text is None else str(text).encode()
