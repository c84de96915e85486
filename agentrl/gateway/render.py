"""Messages → token ids, for any chat template of transformers.

A first turn is the template's text, encoded. A next turn is the recorded ids (prompt + sample) and then the ids of
what the template writes after the assistant's turn: its end marker where the sample has none, the new messages, the
generation prompt. Recorded ids are never decoded and encoded again, so a template that rewrites history (strips
`<think>`, say) does not change what the engine saw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from agentrl.errors import AgentRLError, ConfigError
from agentrl.gateway.detokenize import Detokenizer
from agentrl.gateway.untrusted import ControlTokens, Disguise, encoded
from agentrl.messages import Message

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None
CACHED_TEXTS, CACHED_LENGTH = 512, 100_000


class RenderError(AgentRLError):
    """The chat template refused these messages, in its own words."""


class Renderer:
    """One tokenizer and its chat template. `tokenizer` is a fast transformers tokenizer.

    `end_ids` are the tokens that end an assistant turn: the tokenizer's EOS and what the template writes there.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        self.controls = ControlTokens(self._backend, set(tokenizer.all_special_ids))
        self._detokenizer = Detokenizer(self._backend)
        # The episodes of a group begin with the same text; encoding it is most of the work of a first turn.
        self._ids_of = lru_cache(CACHED_TEXTS)(self._encode_text)
        self._closing = self._find_closing()
        closing_ids = self._backend.encode(self._closing, add_special_tokens=False).ids
        self.end_ids = {number for number in closing_ids[:1] if number in self.controls.special}
        if tokenizer.eos_token_id is not None:
            self.end_ids.add(tokenizer.eos_token_id)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The renderer of a local folder. Raises ConfigError: no such folder, no fast tokenizer, no chat template."""
        if not Path(path).is_dir():
            raise ConfigError(
                f"tokenizer path {str(path)!r} is not a folder; give the folder that holds tokenizer.json"
            )
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        except Exception as error:  # transformers raises whatever a damaged file leads it to
            raise ConfigError(f"tokenizer path {str(path)!r} cannot be loaded: {error}") from error
        if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
            raise ConfigError(f"the tokenizer at {str(path)!r} is not a fast one; save it with tokenizer.json")
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer at {str(path)!r} has no chat template; add chat_template.jinja to the folder"
            )
        return cls(tokenizer)

    def first(self, messages: Messages, tools: Tools = None) -> list[int]:
        """The prompt of a new conversation, generation prompt included. BOS is there as often as the template says."""
        disguise = Disguise(self.controls)
        text = self._template(_prepare(messages, disguise), disguise.hide_all(tools), generation_prompt=True)
        return self._encode(text, disguise)

    def extension(
        self, history: Messages, answer: Mapping[str, Any], new: Messages, tools: Tools, sample: Sequence[int]
    ) -> list[int] | None:
        """The ids to append to a call's prompt + sample so that `new` follows it, generation prompt included.

        `history` are the messages of that call, `answer` its assistant message, `sample` its sampled ids. None when
        the template does not write `new` after the answer: the conversation then has to be rendered anew.
        """
        disguise = Disguise(self.controls)
        mark = disguise.mark()
        hidden_tools = disguise.hide_all(tools)
        before = [*_prepare(history, disguise), _marked(answer, mark, disguise)]
        after = _prepare(new, disguise)
        tail = _after(mark, self._template([*before, *after], hidden_tools, generation_prompt=True))
        if tail is None or not all(
            message["content"].strip() in tail for message in after if message["role"] == "system"
        ):
            return None
        if answer.get("tool_calls"):  # what closes the last call belongs to the sample
            turn = _after(mark, self._template(before, hidden_tools, generation_prompt=False))
            if turn is None or not turn.endswith(self._closing):
                return None
            call_end = turn[: len(turn) - len(self._closing)]
            if not tail.startswith(call_end):
                return None
            tail = tail[len(call_end) :]
        ids = self._encode(tail, disguise)
        return ids[1:] if sample and ids[:1] == list(sample[-1:]) else ids

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of sampled ids: without the token that ended the turn, a character cut in the middle left out."""
        ends = bool(token_ids) and token_ids[-1] in self.end_ids
        return self._detokenizer.text(token_ids[:-1] if ends else token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return self._detokenizer.token_bytes(token_id)

    def _find_closing(self) -> str:
        """What the template writes after the text of an assistant's turn."""
        disguise = Disguise(self.controls)
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": disguise.mark()}]
        try:
            return _after(disguise.mark(), self._template(messages, None, generation_prompt=False)) or ""
        except RenderError as error:
            raise ConfigError(f"the chat template cannot write one question and its answer: {error}") from error

    def _template(self, messages: list[dict[str, Any]], tools: Any, *, generation_prompt: bool) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=tools or None, add_generation_prompt=generation_prompt, tokenize=False
            )
        except Exception as error:  # templates are programs of strangers: they raise whatever they like
            raise RenderError(f"the chat template refused the messages: {error}") from error
        return str(text)

    def _encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(encoded(self._backend, text).ids)

    def _encode(self, text: str, disguise: Disguise) -> list[int]:
        if not disguise.used_in(text):
            return list(self._ids_of(text) if len(text) < CACHED_LENGTH else self._encode_text(text))
        encoding = encoded(self._backend, text)
        ids: list[int] = []
        token_at, char_at = 0, 0
        ends = [
            (i, token_id, span)
            for i, (token_id, span) in enumerate(zip(encoding.ids, encoding.offsets, strict=True))
            if token_id in self.controls
        ]
        for token_end, token_id, (start, end) in [*ends, (len(encoding.ids), None, (len(text), len(text)))]:
            section = text[char_at:start]
            if disguise.used_in(section):
                ids += self.controls.plain_ids(disguise.reveal(section))
            else:
                ids += encoding.ids[token_at:token_end]
            if token_id is not None:
                ids.append(token_id)
            token_at, char_at = token_end + 1, end
        return ids


def _after(mark: str, text: str) -> str | None:
    _, found, tail = text.rpartition(mark)
    return tail if found else None


def _prepare(messages: Messages, disguise: Disguise) -> list[dict[str, Any]]:
    """Messages as templates want them: text content, arguments as objects, nothing that is null, all disguised.

    The assistant's own text keeps its `<think>` and `<tool_call>`, which templates look for; it may not end its turn.
    """
    prepared = []
    for message in messages:
        role = "system" if message["role"] == "developer" else message["role"]
        is_answer = role == "assistant"
        found: dict[str, Any] = {"role": role, "content": disguise.hide(Message(message).text, special_only=is_answer)}
        if message.get("reasoning_content"):
            found["reasoning_content"] = disguise.hide(message["reasoning_content"], special_only=True)
        for key in ("name", "tool_call_id"):
            if message.get(key):
                found[key] = disguise.hide(message[key])
        if message.get("tool_calls"):
            found["tool_calls"] = [
                _tool_call(call, _arguments(call, disguise), disguise) for call in message["tool_calls"]
            ]
        prepared.append(found)
    return prepared


def _marked(answer: Mapping[str, Any], mark: str, disguise: Disguise) -> dict[str, Any]:
    """A stand-in for the recorded answer: the same calls, with a mark as the last thing written."""
    found: dict[str, Any] = {"role": "assistant", "content": mark}
    if calls := answer.get("tool_calls"):
        found["tool_calls"] = [_tool_call(call, {"a": mark}, disguise) for call in calls]
    return found


def _tool_call(call: Mapping[str, Any], arguments: Any, disguise: Disguise) -> dict[str, Any]:
    function = {"name": disguise.hide(call["function"]["name"]), "arguments": arguments}
    return {"id": disguise.hide(call.get("id") or ""), "type": "function", "function": function}


def _arguments(call: Mapping[str, Any], disguise: Disguise) -> Any:
    """An object where that can be written again; as they are spelt when not: no JSON, half a character, too deep."""
    raw: str = call["function"]["arguments"]
    try:
        value = json.loads(raw)
        if isinstance(value, dict):
            json.dumps(value, ensure_ascii=False).encode()
            return disguise.hide_all(value)
    except (ValueError, RecursionError):
        pass
    return disguise.hide(raw)
