"""Lines of data, or recorded trajectories, to rows for the trainer: only the ids that are to be said are trained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.errors import ConfigError
from agentrl.gateway.render import Renderer, RenderError
from agentrl.messages import Message, written_out
from agentrl.train.supervised.jsonl import Pair, conversations, pairs
from agentrl.train.supervised.stored import stored_rows
from agentrl.train.supervised.transcripts import LabelledIds, rows_of
from agentrl.types import TrainRow

NOTHING_TRAINED, REWRITTEN = "nothing_trained", "rewritten_history"


class Item(NamedTuple):
    """What stays together in a batch: one row, or a chosen row and a rejected one."""

    key: str  # items of one key are all trained, or all held out
    where: str  # for complaints
    rows: tuple[TrainRow, ...]


def transcripts(
    path: Path,
    renderer: Renderer,
    left_out: Counter[str],
    *,
    roles: Collection[str] = ("assistant",),
    variables: Mapping[str, Any] | None = None,
) -> Iterator[Item]:
    """Conversations of a JSONL file; mostly one row each. `left_out` counts those that train nothing.

    Raises ConfigError, naming the line.
    """
    for line in conversations(path):
        try:
            rows = rows_of(renderer, line.messages, line.tools, trained=line.trained, roles=roles, variables=variables)
        except RenderError as error:
            raise ConfigError(f"{line.where}: {error}") from error
        if not rows:
            left_out[NOTHING_TRAINED] += 1
        for row in rows:
            yield Item(_key(line.messages), line.where, (_labelled(line.where, row.token_ids, row.loss_mask),))


def recorded(run: Path, min_reward: float | None, left_out: Counter[str]) -> Iterator[Item]:
    """Rows of the training trajectories of `run`. `left_out` counts the other trajectories."""
    for key, session_id, row in stored_rows(run, min_reward=min_reward, left_out=left_out):
        yield Item(key, f"{run}, session {session_id}", (_labelled(session_id, row.token_ids, row.loss_mask),))


def answer_pairs(
    path: Path, renderer: Renderer, left_out: Counter[str], *, variables: Mapping[str, Any] | None = None
) -> Iterator[Item]:
    """Pairs of a JSONL file, of which the answers' assistant turns are trained.

    `left_out` counts those whose answers the chat template does not leave in one row. Raises ConfigError.
    """
    for pair in pairs(path):
        try:
            found = [_answer_rows(renderer, pair, answer, variables) for answer in (pair.chosen, pair.rejected)]
        except RenderError as error:
            raise ConfigError(f"{pair.where}: {error}") from error
        if any(len(rows) != 1 for rows in found):
            left_out[REWRITTEN] += 1
            continue
        yield _item(pair, [rows[0] for rows in found])


def scored_pairs(path: Path, renderer: Renderer) -> Iterator[Item]:
    """Pairs of a JSONL file as whole conversations, encoded as `agentrl reward serve model` encodes what it scores.

    The last token, where the score is read, is the one that counts as trained. Raises ConfigError.
    """
    for pair in pairs(path):
        conversations_of_pair = [[*pair.prompt, *answer] for answer in (pair.chosen, pair.rejected)]
        try:
            found = [renderer.written([written_out(m) for m in messages]) for messages in conversations_of_pair]
        except RenderError as error:
            raise ConfigError(f"{pair.where}: {error}") from error
        yield _item(pair, [LabelledIds(ids, [0] * (len(ids) - 1) + [1]) for ids in found])


def _answer_rows(
    renderer: Renderer, pair: Pair, answer: Sequence[Message], variables: Mapping[str, Any] | None
) -> list[LabelledIds]:
    trained = [False] * len(pair.prompt) + [True] * len(answer)
    return rows_of(renderer, [*pair.prompt, *answer], pair.tools, trained=trained, variables=variables)


def _item(pair: Pair, rows: Sequence[LabelledIds]) -> Item:
    labelled = tuple(_labelled(pair.where, row.token_ids, row.loss_mask) for row in rows)
    return Item(_key(pair.prompt), pair.where, labelled)


def _labelled(session_id: str, token_ids: Sequence[int], loss_mask: Sequence[int]) -> TrainRow:
    zeros = [0.0] * len(token_ids)
    return TrainRow(
        session_id=session_id, token_ids=list(token_ids), loss_mask=list(loss_mask), logprobs=zeros, advantages=zeros
    )


def _key(messages: Sequence[Message]) -> str:
    """Of the words before the first answer: lines of one prompt belong together."""
    first = next((at for at, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return json.dumps([(message.role, message.text) for message in messages[:first]])
