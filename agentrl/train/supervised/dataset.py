"""The rows of a run: what is trained, what is held out, what was left out and why."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.gateway.render import Renderer
from agentrl.train.supervised.config import AnswersConfig, DataConfig, PairsConfig, TranscriptsConfig
from agentrl.train.supervised.items import Item, answer_pairs, recorded, scored_pairs, transcripts
from agentrl.train.supervised.stored import check_tokenizer
from agentrl.types import TrainRow

TOO_LONG, CUT = "too_long", "cut"


@dataclass
class Dataset:
    """`left_out` counts lines, trajectories and rows by the reason why they, or their ends (`cut`), are not here."""

    train: list[Item] = field(default_factory=list)
    held_out: list[Item] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        rows = [row for item in self.train for row in item.rows]
        tokens, trained = sum(len(row.token_ids) for row in rows), sum(sum(row.loss_mask) for row in rows)
        what = "pairs" if len(rows) > len(self.train) else "rows"
        left_out = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(self.left_out.items())) or "nothing"
        return (
            f"{len(self.train):,} {what} to learn from, {tokens:,} tokens, {trained:,} of them trained; "
            f"{len(self.held_out):,} held out; left out: {left_out}"
        )


def load_transcripts(config: TranscriptsConfig, model: Path, seed: int) -> Dataset:
    """Everything that `config` names, as ids of `model`'s tokenizer.

    Raises ConfigError: a line is wrong, a row is too long and that is refused, nothing is left to train.
    """
    dataset, renderer = Dataset(), Renderer.load(model)

    def of_file(path: Path) -> Iterator[Item]:
        left_out, variables = dataset.left_out, config.template_kwargs
        return transcripts(path, renderer, left_out, roles=config.roles, variables=variables)

    if config.from_run is None:
        return _filled(dataset, of_file(_required(config.train)), of_file, config, model, seed)
    check_tokenizer(config.from_run, model)
    rows = recorded(config.from_run, config.min_reward, dataset.left_out)
    return _filled(dataset, rows, of_file, config, model, seed)


def load_answer_pairs(config: AnswersConfig, model: Path, seed: int) -> Dataset:
    """Pairs whose answers are trained; see `load_transcripts`."""
    dataset, renderer = Dataset(), Renderer.load(model)

    def of_file(path: Path) -> Iterator[Item]:
        return answer_pairs(path, renderer, dataset.left_out, variables=config.template_kwargs)

    return _filled(dataset, of_file(_required(config.train)), of_file, config, model, seed)


def load_scored_pairs(config: PairsConfig, model: Path, seed: int) -> Dataset:
    """Pairs of whole conversations, each scored at its last token; see `load_transcripts`."""
    renderer = Renderer.load(model)

    def of_file(path: Path) -> Iterator[Item]:
        return scored_pairs(path, renderer)

    return _filled(Dataset(), of_file(_required(config.train)), of_file, config, model, seed)


def _required(path: Path | None) -> Path:
    if path is None:
        raise ConfigError("data.train is required: a JSONL file")
    return path


def _filled(
    dataset: Dataset,
    train: Iterable[Item],
    of_file: Callable[[Path], Iterator[Item]],
    config: TranscriptsConfig | PairsConfig,
    model: Path,
    seed: int,
) -> Dataset:
    limit = _longest(config, model)
    fitting = list(fit(train, limit, config.too_long, dataset.left_out))
    dataset.train, dataset.held_out = split(fitting, config.eval_fraction, seed)
    if config.eval is not None:
        dataset.held_out = list(fit(of_file(config.eval), limit, config.too_long, dataset.left_out))
    if not dataset.train:
        raise ConfigError(f"there is nothing to learn from in {_source(config)}: {dataset}")
    if config.eval is not None and not dataset.held_out:
        raise ConfigError(f"nothing of data.eval = {str(config.eval)!r} is left: {dataset}")
    return dataset


def fit(items: Iterable[Item], limit: int | None, too_long: str, left_out: Counter[str]) -> Iterator[Item]:
    """Those of at most `limit` tokens a row; the others by the policy `too_long`, counted. Raises ConfigError."""
    for item in items:
        longest = max(len(row.token_ids) for row in item.rows)
        if limit is None or longest <= limit:
            yield item
        elif too_long == "refuse":
            raise ConfigError(
                f"{item.where}: a row has {longest} tokens, the limit is {limit}; raise data.max_tokens, shorten the "
                'row, or set data.too_long = "drop"'
            )
        elif too_long == "cut" and (cut := tuple(_cut(row, limit) for row in item.rows if any(row.loss_mask[:limit]))):
            left_out[CUT] += 1
            yield item._replace(rows=cut)
        else:
            left_out[TOO_LONG] += 1


def split(items: Sequence[Item], fraction: float, seed: int) -> tuple[list[Item], list[Item]]:
    """What is trained, and `fraction` of the keys (one at least) held out; which ones, keys and seed alone decide."""
    if not fraction:
        return list(items), []
    keys = sorted({item.key for item in items}, key=lambda key: _hash(f"{seed}-{key}"))
    held_out = set(keys[: max(1, round(fraction * len(keys)))])
    return [item for item in items if item.key not in held_out], [item for item in items if item.key in held_out]


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _cut(row: TrainRow, limit: int) -> TrainRow:
    return TrainRow(
        session_id=row.session_id,
        token_ids=row.token_ids[:limit],
        loss_mask=row.loss_mask[:limit],
        logprobs=row.logprobs[:limit],
        advantages=row.advantages[:limit],
    )


def _longest(config: DataConfig, model: Path) -> int | None:
    context = json.loads((model / "config.json").read_text()).get("max_position_embeddings")
    if config.max_tokens and context and config.max_tokens > context:
        raise ConfigError(f"data.max_tokens = {config.max_tokens} is more than the model's context of {context}")
    return config.max_tokens or (int(context) if context else None)


def _source(config: TranscriptsConfig | PairsConfig) -> str:
    run = getattr(config, "from_run", None)
    return f"data.from_run = {str(run)!r}" if run else f"data.train = {str(config.train)!r}"
