"""Messages in OpenAI form → messages as chat templates want them, disguised (see `untrusted`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.gateway.template import RenderError, Template
from agentrl.gateway.untrusted import Disguise
from agentrl.messages import text_of

NAME, KEY, VALUE = "zqname", "zqkey", "zqvalue"  # words that no template writes by itself
CALL_ID = "aaaaaaaaa"  # Mistral's template counts nine
QUESTION = {"role": "user", "content": "a"}
PLAIN_ROLES = frozenset({"system", "user", "assistant"})
THINKING = re.compile(r"""\.thinking\b|['"]thinking['"]""")


@dataclass(frozen=True)
class MessageForm:
    """How one template wants an assistant's messages. Templates differ, and write what has another form wrongly."""

    arguments_as_text: bool = False  # as an object elsewhere
    null_content: bool = False  # beside calls, where there is no text; "" elsewhere
    takes_text: bool = True  # arguments that are no object may be given as they are spelt
    reasoning_key: str = "reasoning_content"

    @classmethod
    def of(cls, template: Template) -> MessageForm:
        """The form in which a call comes out whole, and nothing else with it.

        The commonest for a template that writes no calls.
        """
        thinking = "reasoning_content" not in template.source and THINKING.search(template.source)
        key = "thinking" if thinking else "reasoning_content"
        forms = [cls(as_text, null, True, key) for as_text in (False, True) for null in (False, True)]
        written = [(len(text), form) for form in forms if (text := form._written_call(template)) is not None]
        # A null content that is printed makes the text longer, and so does an empty one that gets a turn of its own.
        form = min(written, key=lambda found: found[0])[1] if written else forms[0]
        try:
            template.render([QUESTION, form._call("half an obj")], generation_prompt=False)
        except RenderError:
            return replace(form, takes_text=False)
        return form

    def _written_call(self, template: Template) -> str | None:
        """A question and a call as this form has them written; None when the call is garbled."""
        try:
            text = template.render([QUESTION, self.call({KEY: VALUE})], generation_prompt=False)
        except RenderError:
            return None
        garbled = (f"'{KEY}'", f'\\"{KEY}')  # Python's spelling of an object, or JSON inside JSON
        whole = all(word in text for word in (NAME, KEY, VALUE)) and not any(spelling in text for spelling in garbled)
        return text if whole else None

    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """An assistant's message with one call of our own."""
        return self._call(json.dumps(arguments) if self.arguments_as_text else dict(arguments))

    def _call(self, arguments: Any) -> dict[str, Any]:
        call = {"id": CALL_ID, "type": "function", "function": {"name": NAME, "arguments": arguments}}
        return {"role": "assistant", "content": self._content(""), "tool_calls": [call]}

    def prepare(self, messages: Sequence[Mapping[str, Any]], disguise: Disguise) -> list[dict[str, Any]]:
        """Text content, nothing else that is null, all disguised.

        The assistant's own text keeps its `<think>` and `<tool_call>`, which templates look for; it may neither end
        its turn nor begin another.
        """
        return [self._prepared(message, disguise) for message in messages]

    def stand_in(self, answer: Mapping[str, Any], mark: str, disguise: Disguise) -> dict[str, Any]:
        """In place of a recorded answer: the same calls, with a mark as the last thing written."""
        calls = answer.get("tool_calls")
        if not calls:
            return {"role": "assistant", "content": mark}
        marked: Any = {"a": mark}
        if self.arguments_as_text:
            marked = json.dumps(marked)
        found = {"role": "assistant", "content": None if self.null_content else mark}
        return found | {"tool_calls": [_tool_call(call, marked, disguise) for call in calls]}

    def _prepared(self, message: Mapping[str, Any], disguise: Disguise) -> dict[str, Any]:
        role, content = message["role"], message.get("content")
        if len(message) == 2 and role in PLAIN_ROLES and isinstance(content, str):  # most are like that
            return {"role": role, "content": disguise.hide(content, is_answer=role == "assistant")}
        role = "system" if role == "developer" else role
        is_answer = role == "assistant"
        calls = message.get("tool_calls")
        text = disguise.hide(text_of(message), is_answer=is_answer)
        found: dict[str, Any] = {"role": disguise.hide(role), "content": self._content(text) if calls else text}
        # The harmony template refuses calls beside both.
        if (reasoning := message.get("reasoning_content")) and not (
            calls and text and self.reasoning_key == "thinking"
        ):
            found[self.reasoning_key] = disguise.hide(reasoning, is_answer=is_answer)
        for key in ("name", "tool_call_id"):
            if message.get(key):
                found[key] = disguise.hide(message[key])
        if calls:
            found["tool_calls"] = [_tool_call(call, self._arguments(call, disguise), disguise) for call in calls]
        return found

    def _content(self, text: str) -> str | None:
        return None if self.null_content and not text else text

    def _arguments(self, call: Mapping[str, Any], disguise: Disguise) -> Any:
        """An object where one is wanted and can be written again. It cannot: no JSON, half a character, too deep."""
        raw: str = call["function"]["arguments"]
        if not self.arguments_as_text:
            try:
                value = json.loads(raw)
                if isinstance(value, dict):
                    json.dumps(value, ensure_ascii=False).encode()
                    return disguise.hide_all(value)
            except (ValueError, RecursionError):
                pass
        return disguise.hide(raw) if self.takes_text else {"arguments": disguise.hide(raw)}


def _tool_call(call: Mapping[str, Any], arguments: Any, disguise: Disguise) -> dict[str, Any]:
    function = {"name": disguise.hide(call["function"]["name"]), "arguments": arguments}
    return {"id": disguise.hide(call.get("id") or ""), "type": "function", "function": function}
