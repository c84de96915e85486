"""What an environment and a policy say to each other, as gymnasium spaces, and why a message is not one."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space

from agentrl.messages import Message, assistant, user

_ROLES = ("system", "developer", "user", "assistant", "tool")
_WORDS = ("calculate", "the", "answer", "is", "42", "naïve", "\n", "{}")


def message_fault(message: Any) -> str | None:
    """Why `message` is not a chat message in OpenAI form, or None when it is one."""
    if not isinstance(message, dict):
        return f"a message is a dict such as agentrl.user('...'), got {type(message).__name__}"
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        return f"the role of a message is one of {', '.join(_ROLES)}, got {role!r}"
    if content is None and role != "assistant":
        return f"the content of a {role} message is a string or a list of parts, got None"
    if not isinstance(content, str | list | None):
        return f"the content of a message is a string or a list of parts, got {type(content).__name__}"
    if isinstance(content, list) and not all(_is_part(part) for part in content):
        return "every content part is a dict with a string 'type'"
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        return "a tool message names the call it answers in 'tool_call_id'"
    return None


class ObservationSpace(Space[list[Message]]):
    """Lists of chat messages: the ones that are new since the last action."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    def fault(self, value: Any) -> str | None:
        """Why `value` is not an observation, or None."""
        if not isinstance(value, list):
            return f"an observation is the list of new chat messages, got {type(value).__name__}"
        return next((fault for message in value if (fault := message_fault(message)) is not None), None)

    def contains(self, x: Any) -> bool:
        return self.fault(x) is None

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> list[Message]:
        return [user(_text(self)) for _ in range(self.np_random.integers(1, 3))]

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObservationSpace)

    def __repr__(self) -> str:
        return "ObservationSpace()"


class ActionSpace(Space[Message]):
    """Assistant messages. Plain text counts as one."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) or (message_fault(x) is None and x["role"] == "assistant")

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> Message:
        return assistant(_text(self))

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionSpace)

    def __repr__(self) -> str:
        return "ActionSpace()"


def as_action(action: Message | dict[str, Any] | str) -> Message:
    """The assistant message that an action stands for. Raises TypeError when it stands for none."""
    if isinstance(action, str):
        return assistant(action)
    if message_fault(action) is not None or action["role"] != "assistant":
        raise TypeError(f"an action is an assistant message or plain text, got {action!r:.200}")
    return action if isinstance(action, Message) else Message(action)


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _text(space: Space[Any]) -> str:
    return " ".join(str(word) for word in space.np_random.choice(_WORDS, size=space.np_random.integers(1, 6)))
