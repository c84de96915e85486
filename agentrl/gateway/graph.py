"""The token graph of one session: calls with parent pointers, and the training rows that follow from them. No I/O.

A call whose messages continue what an earlier call answered is its child: its prompt begins with that call's
prompt + sample, id for id. Every other call is a root. Paths from a root to a leaf become rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.digest import RunningDigest
from agentrl.types import Call, Row, VersionSpan


class TokenGraph:
    """Calls in the order they ended. `calls[i].parent` is always below i."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._by_conversation: dict[bytes, int] = {}
        self._unseen: set[int] = set()  # calls whose sample nobody was given
        self._texts: dict[int, tuple[str, str]] = {}  # (first token, prompt + sample) of calls, decoded
        self._digests: dict[int, RunningDigest] = {}  # of prompts

    def match(self, keys: Sequence[bytes]) -> tuple[int | None, int]:
        """The call that a conversation continues, and how many of its messages that call's ids already hold.

        `keys` are those of every prefix (`canonical.conversation_keys`). (None, 0) starts a new root. Of calls with
        equal messages and equal answers the latest is taken.
        """
        for count in range(len(keys) - 1, 0, -1):
            if (index := self._by_conversation.get(keys[count])) is not None:
                return index, count
        return None, 0

    def match_ids(self, token_ids: Sequence[int]) -> int | None:
        """The call whose prompt + sample these ids begin with; the longest such, the latest among equals."""
        best, held = None, 0
        for index, call in enumerate(self.calls):
            length = len(call.prompt_token_ids) + len(call.token_ids)
            if held <= length <= len(token_ids) and index not in self._unseen and begins_with(token_ids, call):
                best, held = index, length
        return best

    def match_text(self, text: str, decode: Callable[[Sequence[int]], str]) -> tuple[int | None, str]:
        """The call whose prompt + sample, decoded, `text` begins with, and the text after it. (None, text) for none.

        The longest such, the latest among equals. A text without the BOS that its prompt was given matches too.
        """
        best, held = None, 0
        for index, call in enumerate(self.calls):
            if index in self._unseen or not call.prompt_token_ids:
                continue
            if index not in self._texts:
                bos = decode(call.prompt_token_ids[:1])
                self._texts[index] = (bos, bos + decode(call.prompt_token_ids[1:] + call.token_ids))
            bos, whole = self._texts[index]
            for written in (whole, whole.removeprefix(bos)):
                if len(written) >= max(held, 1) and text.startswith(written):
                    best, held = index, len(written)
                    break
        return best, text[held:]

    def prompt_digest(self, index: int | None) -> RunningDigest | None:
        """Of a call's prompt, to go on from; None where it is not known."""
        return None if index is None else self._digests.get(index)

    def add(self, call: Call, keys: Sequence[bytes] = (), digest: RunningDigest | None = None) -> int:
        """Records a call. `keys` are those of its messages with its answer, in the forms in which clients may send it
        back; none for a raw prompt. One that nobody was given ("abort") is never continued. `digest` is its prompt's.

        Raises ValueError when its prompt does not begin with its parent's prompt + sample (invariant 1).
        """
        if call.parent is not None:
            parent = self.calls[call.parent]
            if not begins_with(call.prompt_token_ids, parent):
                raise ValueError(f"call {call.call_id} does not extend call {parent.call_id}, its parent, id for id")
        self.calls.append(call)
        index = len(self.calls) - 1
        if digest is not None:
            self._digests[index] = digest
        if call.finish_reason == "abort":
            self._unseen.add(index)
        else:
            for key in keys:
                self._by_conversation[key] = index
        return index

    def find(self, call_id: str) -> int | None:
        return next((i for i in range(len(self.calls) - 1, -1, -1) if self.calls[i].call_id == call_id), None)

    def conversation(self, index: int) -> list[dict[str, Any]]:
        """The messages that led to a call, its answer included; without the instructions of its request."""
        return [
            message for i in _path(self.calls, index) for message in (*self.calls[i].messages, self.calls[i].message)
        ]

    def rows(self) -> list[Row]:
        return build_rows(self.calls)

    def dropped(self) -> dict[str, int]:
        return count_dropped(self.calls)


def begins_with(token_ids: Sequence[int], call: Call) -> bool:
    """Whether the ids begin with the call's prompt + sample."""
    held = len(call.prompt_token_ids)
    whole = held + len(call.token_ids)
    return token_ids[:held] == call.prompt_token_ids and token_ids[held:whole] == call.token_ids


def untrainable_reason(
    token_ids: Sequence[int], logprobs: Sequence[float] | None, versions: Sequence[VersionSpan]
) -> str | None:
    """The named reason why a sample must not be trained (invariants 3 and 4), None when it may be."""
    if not token_ids:
        return "empty"
    if logprobs is None:
        return "logprobs_missing"
    if len(logprobs) != len(token_ids):
        return "logprobs_wrong_size"
    if not all(map(math.isfinite, logprobs)):
        return "logprobs_not_finite"
    if not _cover(versions, len(token_ids)):
        return "versions_wrong"
    return None


def build_rows(calls: Sequence[Call]) -> list[Row]:
    """One row per path that ends in a trainable call; each sampled token has mask 1 in exactly one of them.

    A shared ancestor is trained in the row of the first leaf below it and is context in the others. Calls that must
    not be trained are context; where nothing trainable follows them they are in no row.
    """
    useful = [call.untrainable is None for call in calls]
    inner = [False] * len(calls)
    for index in range(len(calls) - 1, -1, -1):
        parent = calls[index].parent
        if useful[index] and parent is not None:
            useful[parent] = inner[parent] = True
    claimed: set[int] = set()
    rows = []
    for leaf in (i for i in range(len(calls)) if useful[i] and not inner[i]):
        fresh = [i for i in _path(calls, leaf) if calls[i].untrainable is None and i not in claimed]
        claimed.update(fresh)
        rows.append(_row(calls[leaf], [calls[i] for i in fresh]))
    return rows


def count_dropped(calls: Sequence[Call]) -> dict[str, int]:
    """Sampled tokens in no row, by reason. An empty sample shows as its reason with 0 tokens."""
    dropped: dict[str, int] = {}
    for call in calls:
        if call.untrainable is not None:
            dropped[call.untrainable] = dropped.get(call.untrainable, 0) + len(call.token_ids)
    return dropped


def _path(calls: Sequence[Call], leaf: int) -> list[int]:
    path = [leaf]
    while (parent := calls[path[-1]].parent) is not None:
        path.append(parent)
    return path[::-1]


def _row(leaf: Call, trained: Sequence[Call]) -> Row:
    token_ids = leaf.prompt_token_ids + leaf.token_ids
    loss_mask = [0] * len(token_ids)
    logprobs: list[float | None] = [None] * len(token_ids)
    versions: list[VersionSpan] = []
    for call in trained:
        start = len(call.prompt_token_ids)
        end = start + len(call.token_ids)
        loss_mask[start:end] = [1] * len(call.token_ids)
        logprobs[start:end] = call.logprobs or []
        versions += [VersionSpan(span.version, start + span.start, start + span.end) for span in call.versions]
    return Row(token_ids=token_ids, loss_mask=loss_mask, logprobs=logprobs, versions=versions)


def _cover(spans: Sequence[VersionSpan], size: int) -> bool:
    at, version = 0, -1
    for span in spans:
        if span.start != at or span.end <= span.start or span.version < version:
            return False
        at, version = span.end, span.version
    return at == size
