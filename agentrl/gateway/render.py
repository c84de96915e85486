"""Messages → token ids, for any chat template of transformers.

A first turn is the template's text, encoded. A next turn is the recorded ids (prompt + sample) and then the ids of
what the template writes after the assistant's turn: its end marker where the sample has none, the new messages, the
generation prompt. Recorded ids are never decoded and encoded again, so a template that rewrites history (strips
`<think>`, say) does not change what the engine saw.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from agentrl.errors import ConfigError
from agentrl.gateway.detokenize import Detokenizer, StreamDecoder
from agentrl.gateway.endings import NoJoint, after, endings_of
from agentrl.gateway.sections import SectionEncoder
from agentrl.gateway.template import RenderError, Template
from agentrl.gateway.template_messages import MessageForm
from agentrl.gateway.untrusted import ControlTokens, Disguise, Spellings, control_contents, encoded

__all__ = ["RenderError", "Renderer"]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None
Variables = Mapping[str, Any]
CACHED_TEXTS, CACHED_LENGTH = 256, 20_000
NO_VARIABLES: Variables = {}
THINK, END_THINK = "<think>", "</think>"


class Renderer:
    """One tokenizer and its chat template. `tokenizer` is a fast transformers tokenizer.

    `end_ids` are the tokens that end an assistant turn: the tokenizer's EOS, those of the model's generation config
    (given here), and what the template writes there.
    """

    def __init__(self, tokenizer: Any, end_ids: Iterable[int] = ()) -> None:
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        self._detokenizer = Detokenizer(self._backend)
        # The episodes of a group begin with the same text; encoding it is most of the work of a first turn.
        self._sections = SectionEncoder(self._backend)
        self._ids_of = lru_cache(CACHED_TEXTS)(self._encode_text)
        self._template = Template(tokenizer.chat_template, tokenizer.special_tokens_map)
        self._form = MessageForm.of(self._template)

        contents = control_contents(self._backend)
        added = self._backend.get_added_tokens_decoder()
        special = set(tokenizer.all_special_ids) | {number for number in contents if added[number].special}
        eos = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
        known = eos | set(end_ids)
        self._ends = endings_of(self._template, self._form, Spellings(contents, special), known)
        self.end_ids: set[int] = known | self._ends.sampled

        self.other_end_ids = frozenset(self.end_ids - eos)
        """Those that an engine does not end at by itself."""
        self.template_source = self._template.source
        self._control_ids = {text: number for number, text in contents.items()}
        self._open, self._close = ({n for n, text in contents.items() if text == mark} for mark in (THINK, END_THINK))
        self.controls = ControlTokens(
            self._backend, (special | known | self._ends.structural) - self._open - self._close
        )
        self._lead, self._trail = self._added_around_text()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The renderer of a local folder.

        Raises ConfigError: no such folder, no fast tokenizer, no chat template, a damaged generation_config.json.
        """
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
        return cls(tokenizer, _generation_end_ids(Path(path)))

    def first(self, messages: Messages, tools: Tools = None, template_kwargs: Variables = NO_VARIABLES) -> list[int]:
        """The prompt of a new conversation, generation prompt included. BOS is there as often as the template says.

        `template_kwargs` are further variables of the template. Raises RenderError.
        """
        return self._whole(messages, tools, template_kwargs, generation_prompt=True)

    def finished(self, messages: Messages, tools: Tools = None, template_kwargs: Variables = NO_VARIABLES) -> list[int]:
        """The ids of a conversation up to the end of its last message, an answer, without what ends its turn."""
        closing = self._ends.call_closing if messages[-1].get("tool_calls") else self._ends.closing
        return self._whole(messages, tools, template_kwargs, generation_prompt=False, without=closing)

    def written(self, messages: Messages, tools: Tools = None, template_kwargs: Variables = NO_VARIABLES) -> list[int]:
        """The ids of a whole conversation, no generation prompt behind it. Raises RenderError."""
        return self._whole(messages, tools, template_kwargs, generation_prompt=False)

    def answer(self, messages: Messages, tools: Tools = None, template_kwargs: Variables = NO_VARIABLES) -> list[int]:
        """What a policy has to sample, after `first` of `messages` but the last, to say the last and end its turn.

        Encoded apart from the prompt, as a sample is. The end is left out where the template has no marker of its own
        for it. Raises RenderError: the template does not write the answer behind its generation prompt.
        """
        disguise = Disguise(self.controls)
        prepared = self._form.prepare(messages, disguise)
        variables, hidden_tools = disguise.hide_all(template_kwargs), disguise.hide_all(tools)
        prompt = self._template.render(prepared[:-1], hidden_tools, variables, generation_prompt=True)
        whole = self._template.render(prepared, hidden_tools, variables, generation_prompt=False)
        if not whole.startswith(prompt):
            raise RenderError("the chat template does not write this answer behind its generation prompt")
        closing = self._ends.call_closing if messages[-1].get("tool_calls") else self._ends.closing
        text = whole[len(prompt) :].removesuffix(closing)
        first = next(iter(self.controls.spellings.find(closing)), None)
        end = closing[: first[2]] if first is not None and first[0] in self.end_ids else ""
        return self._encode(text + end, disguise)

    def raw(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a prompt that a client wrote itself, in which control tokens are matched.

        `add_special_tokens` adds what the tokenizer adds (BOS, mostly), but not again what the text begins with.
        """
        ids = self._encode_text(text)
        if not add_special_tokens:
            return list(ids)
        lead = () if ids[: len(self._lead)] == self._lead else self._lead
        return [*lead, *ids, *self._trail]

    def extension(
        self,
        history: Messages,
        answer: Mapping[str, Any],
        new: Messages,
        tools: Tools,
        sample: Sequence[int],
        template_kwargs: Variables = NO_VARIABLES,
    ) -> list[int] | None:
        """The ids to append to a call's prompt + sample so that `new` follows it, generation prompt included.

        `history` are the messages of that call, `answer` its assistant message, `sample` its sampled ids. None when
        the template does not write `new` after the answer: the conversation then has to be rendered anew.
        """
        disguise = Disguise(self.controls)
        mark, system_mark = disguise.mark(), disguise.mark("system")
        variables, hidden_tools = disguise.hide_all(template_kwargs), disguise.hide_all(tools)
        before = [*self._form.prepare(history, disguise), self._form.stand_in(answer, mark, disguise)]
        following = self._form.prepare(new, disguise)

        def tail_of(messages: list[dict[str, Any]], *, generation_prompt: bool = True) -> str:
            text = self._template.render(messages, hidden_tools, variables, generation_prompt=generation_prompt)
            return after(mark, text) or ""

        try:
            tail = tail_of([*before, *following])
            if any(message["role"] == "system" for message in following):  # some templates write them before all else
                marked = [{**m, "content": system_mark} if m["role"] == "system" else m for m in following]
                if tail_of([*before, *marked]).count(system_mark) != sum(m["role"] == "system" for m in marked):
                    return None
            if not tail:
                return None
            is_call = bool(answer.get("tool_calls"))
            joint = self._ends.joint(self.controls.spellings.find(tail), sample, is_call=is_call)
            if joint is None:
                turn = tail_of(before, generation_prompt=False) if is_call else self._ends.closing
                joint = self._ends.plain_joint(tail, turn), False
        except (RenderError, NoJoint):
            return None
        start, is_there = joint
        ids = self._encode(tail[start:], disguise)
        return ids[1:] if is_there else ids

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of sampled ids: without the token that ended the turn, a character cut in the middle left out."""
        ends = bool(token_ids) and token_ids[-1] in self.end_ids
        return self._detokenizer.text(token_ids[:-1] if ends else token_ids)

    def spelled(self, token_ids: Sequence[int]) -> str:
        """The text of any ids, control tokens included."""
        return self._detokenizer.text(token_ids)

    def stream(self) -> StreamDecoder:
        """For sampled ids as they come; the token that ended the turn is not to be fed."""
        return self._detokenizer.stream()

    def control_id(self, text: str) -> int | None:
        """The one control token that is spelled so."""
        return self._control_ids.get(text)

    def token_bytes(self, token_id: int) -> bytes:
        return self._detokenizer.token_bytes(token_id)

    def reasoning_open(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt ends inside a `<think>`, which a generation prompt may have opened."""
        at = len(prompt_ids)
        for at in range(len(prompt_ids), 0, -1):
            token_id = prompt_ids[at - 1]
            if token_id in self._open or token_id in self._close:
                return token_id in self._open
            if token_id in self.controls.structural:
                break
        else:
            at = 0
        if self._open:
            return False
        text = self._detokenizer.text(prompt_ids[at:])
        return text.rfind(THINK) > text.rfind(END_THINK)

    def _whole(
        self, messages: Messages, tools: Tools, variables: Variables, *, generation_prompt: bool, without: str = ""
    ) -> list[int]:
        disguise = Disguise(self.controls)
        text = self._template.render(
            self._form.prepare(messages, disguise),
            disguise.hide_all(tools),
            disguise.hide_all(variables),
            generation_prompt=generation_prompt,
        )
        return self._encode(text.removesuffix(without), disguise)

    def _encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(self._sections.ids(text))

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

    def _added_around_text(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the tokenizer puts before and behind a text that is to have its special tokens."""
        plain = self._encode_text("a")
        whole = tuple(self._backend.encode("a", add_special_tokens=True).ids)
        starts = range(len(whole) - len(plain) + 1)
        at = next((i for i in starts if whole[i : i + len(plain)] == plain), 0)
        return whole[:at], whole[at + len(plain) :]


def _generation_end_ids(folder: Path) -> list[int]:
    """The `eos_token_id` of a folder's generation_config.json, which may be several; [] without one."""
    file = folder / "generation_config.json"
    if not file.is_file():
        return []
    try:
        found = json.loads(file.read_bytes()).get("eos_token_id")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{str(file)!r} is no JSON object: {error}; mend or remove it") from error
    numbers = [] if found is None else found if isinstance(found, list) else [found]
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
        raise ConfigError(f"{str(file)!r} has eos_token_id {found!r}; it is one token id or a list of them")
    return numbers
