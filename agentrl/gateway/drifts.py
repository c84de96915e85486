"""How far the rows of one session are from fresh renderings of their conversations."""

from __future__ import annotations

from msgspec import Struct

from agentrl.gateway.drift import Rerenders, drift_of
from agentrl.gateway.generation import Rendering
from agentrl.gateway.render import RenderError
from agentrl.types import Call


class SessionDrift(Struct, frozen=True, kw_only=True):
    """`tokens` of the recorded ids come after the place where a fresh rendering would have gone another way."""

    tokens: int = 0
    conversations: int = 0  # that drifted
    compared: int = 0  # conversations that could be rendered again


class Drifts:
    """Remembers what the last call of each conversation was rendered from. A session that was taken up from the
    journal knows it of later calls only."""

    def __init__(self) -> None:
        self._leaves: dict[int, tuple[Call, Rendering]] = {}

    def saw(self, index: int, call: Call, rendering: Rendering | None) -> None:
        if rendering is not None:
            self._leaves[index] = (call, rendering)
        if call.parent is not None:
            self._leaves.pop(call.parent, None)

    @property
    def num_ids(self) -> int:
        """Of all conversations that are to be rendered again."""
        return sum(len(call.prompt_token_ids) + len(call.token_ids) for call, _ in self._leaves.values())

    def measure(self, renderer: Rerenders) -> SessionDrift:
        """Long sessions take long enough for a thread. What the template cannot write is not compared."""
        tokens = conversations = compared = 0
        for call, given in list(self._leaves.values()):
            ids = call.prompt_token_ids + call.token_ids
            messages = [*given.messages, call.message]
            try:
                drift = drift_of(renderer, messages, given.tools, given.template_kwargs, ids)
            except RenderError:
                continue
            compared += 1
            if drift is not None:
                conversations += 1
                tokens += drift.tokens_recorded - drift.common_prefix
        return SessionDrift(tokens=tokens, conversations=conversations, compared=compared)
