"""What is kept of a stream that may never end."""

from __future__ import annotations


class KeptOutput:
    """The first and the last half of `limit` bytes; what is between them is counted and dropped."""

    def __init__(self, limit: int) -> None:
        self._head_size = limit - limit // 2
        self._tail_size = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._head_size - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._tail_size + 65536:  # cut seldom: each cut moves the rest
            self._cut()

    @property
    def dropped(self) -> int:
        """Bytes."""
        return max(0, self.total - self._head_size - self._tail_size)

    @property
    def text(self) -> str:
        self._cut()
        if not self.dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"{head}\n[{self.dropped} bytes left out]\n{tail}"

    def _cut(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_size)]
