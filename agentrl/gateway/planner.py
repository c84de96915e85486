"""Requests → prompts: which call of the session a request continues, and the ids that follow from it. No I/O."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from agentrl.gateway.generation import Plan, Rendering
from agentrl.gateway.graph import begins_with
from agentrl.gateway.parsers import family_for
from agentrl.gateway.parsers.base import Family, ParseOptions
from agentrl.gateway.parsers.forced import json_answer
from agentrl.gateway.parsers.raw import RawParser
from agentrl.gateway.reader import Reader
from agentrl.gateway.refusal import Refusal, invalid
from agentrl.gateway.render import Renderer, RenderError
from agentrl.gateway.request import Conversation, NamedTool, RawText, RawTokens, TurnRequest
from agentrl.gateway.sampling import effective
from agentrl.gateway.session import Session
from agentrl.types import Sampling

TOO_DEEP = "a schema or an argument is nested too deep to be written into a prompt"


class Planner:
    """`family` is how the policy writes calls and reasoning; by default what its chat template spells says it."""

    def __init__(self, renderer: Renderer, family: Family | None = None) -> None:
        self._renderer = renderer
        self.family = family or family_for(renderer.template_source)

    def plan(self, session: Session, request: TurnRequest, response_id: str) -> list[Plan]:
        """One plan per choice, in order. Raises Refusal naming the field."""
        sampling = effective(request.sampling, session.pins, session.mode)
        plans: list[Plan] = []
        for prompt in request.prompts:
            plan = self._plan(session, prompt, sampling)
            for choice in range(request.n):
                call_id = f"{response_id}-{len(plans)}" if plans else response_id
                own = _of_choice(plan.sampling, choice)
                plans.append(msgspec.structs.replace(plan, call_id=call_id, sampling=own))
        return plans

    def count_reasoning(self, token_ids: list[int], characters: int) -> int:
        """How many of the ids it takes to write so many characters."""
        decoder, written = self._renderer.stream(), 0
        for count, token_id in enumerate(token_ids, 1):
            written += len(decoder.feed([token_id]))
            if written >= characters:
                return count
        return len(token_ids)

    def text(self, token_ids: list[int]) -> str:
        """Of sampled ids that are no answer."""
        return self._renderer.text(token_ids)

    def _plan(self, session: Session, prompt: Conversation | RawText | RawTokens, sampling: Sampling) -> Plan:
        match prompt:
            case Conversation():
                return self._of_conversation(session, prompt, sampling)
            case RawTokens(token_ids):
                if not token_ids:
                    raise invalid("token_ids", "token_ids is empty; a prompt has at least one token")
                parent, ids = session.graph.match_ids(token_ids), token_ids
            case RawText(text, add_special_tokens):
                parent, rest = session.graph.match_text(text, self._renderer.spelled)
                ids = self._renderer.raw(rest, add_special_tokens and parent is None)
                if parent is not None:
                    call = session.graph.calls[parent]
                    ids = call.prompt_token_ids + call.token_ids + ids
                if not ids:
                    raise invalid("prompt", "the prompt is empty; it needs at least one token")
        return Plan(
            call_id="",
            parent=parent,
            prompt_ids=list(ids),
            sampling=sampling,
            new_reader=partial(self._reader, RawParser, ParseOptions(), sampling.stop),
            end_ids=self._renderer.end_ids,
        )

    def _of_conversation(self, session: Session, prompt: Conversation, sampling: Sampling) -> Plan:
        history, messages = self._whole(session, prompt)
        try:
            keys = session.keys.of(messages, prompt.tools, prompt.template_kwargs)
            parent, held = session.graph.match(keys)
            rendering = Rendering(messages, prompt.tools, prompt.template_kwargs)
            if session.history == "rerender":
                parent, prompt_ids, branch = self._rerendered(session, rendering, parent)
            else:
                parent, prompt_ids, branch = self._appended(session, rendering, parent, held)
        except RenderError as error:
            raise invalid("messages", str(error)) from error
        except RecursionError as error:
            raise invalid("tools", f"tools: {TOO_DEEP}") from error
        tools = [] if prompt.tool_choice == "none" else prompt.tools or []
        options = ParseOptions(tools=tools, in_reasoning=self._renderer.reasoning_open(prompt_ids))
        sent = self._with_ends(prompt, options, sampling)
        one_call = bool(tools) and not prompt.parallel_tool_calls and sent.constraint is None
        return Plan(
            call_id="",
            parent=parent,
            prompt_ids=prompt_ids,
            sampling=sent,
            new_reader=partial(self._reader, self.family.parser, options, sampling.stop, one_call),
            conversation=keys[-1],
            messages=messages[held:] if parent is not None else history,
            end_ids=self._renderer.end_ids,
            branch=branch if session.graph.calls else "",
            rendering=rendering,
            begun=session.graph.prompt_digest(parent),
        )

    def _whole(self, session: Session, prompt: Conversation) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The conversation without and with the instructions of this request."""
        history = prompt.messages
        if prompt.after is not None:
            if (index := session.graph.find(prompt.after)) is None:
                message = f"session {session.id} has no response {prompt.after!r}; send the whole conversation instead"
                raise Refusal(404, "previous_response_not_found", message, param="previous_response_id")
            history = [*session.graph.conversation(index), *history]
        if prompt.instructions is None:
            return history, history
        return history, [{"role": "system", "content": prompt.instructions}, *history]

    def _appended(
        self, session: Session, given: Rendering, parent: int | None, held: int
    ) -> tuple[int | None, list[int], str]:
        """The recorded ids go on; what the template would make of the history now does not matter."""
        if parent is not None:
            call = session.graph.calls[parent]
            history, new = given.messages[: held - 1], given.messages[held:]
            added = self._renderer.extension(
                history, call.message, new, given.tools, call.token_ids, given.template_kwargs
            )
            if added is not None:
                return parent, call.prompt_token_ids + call.token_ids + added, ""
        return None, self._first(given), "rewritten" if parent is None else "unbridgeable"

    def _rerendered(self, session: Session, given: Rendering, parent: int | None) -> tuple[int | None, list[int], str]:
        """The template writes everything anew; where it does not write what was recorded, a branch begins."""
        ids = self._first(given)
        if parent is None:
            return None, ids, "rewritten"
        if not begins_with(ids, session.graph.calls[parent]):
            return None, ids, "template"
        return parent, ids, ""

    def _first(self, given: Rendering) -> list[int]:
        return self._renderer.first(given.messages, given.tools, given.template_kwargs)

    def _with_ends(self, prompt: Conversation, options: ParseOptions, sampling: Sampling) -> Sampling:
        """The sampling with what else ends a turn, and kept to what tool_choice asks for."""
        stop, stop_ids = sampling.stop, self._renderer.other_end_ids.union(sampling.stop_token_ids)
        constraint = sampling.constraint
        if options.tools and prompt.tool_choice != "auto":
            if constraint is not None:
                raise invalid("tool_choice", "tool_choice and response_format both constrain the answer; send one")
            name = prompt.tool_choice.name if isinstance(prompt.tool_choice, NamedTool) else None
            constraint = self.family.forced(options.tools, name, prompt.parallel_tool_calls, options.in_reasoning)
        elif constraint is not None:
            calls = None
            if options.tools and self.family.name != "plain":
                calls = self.family.forced(options.tools, None, prompt.parallel_tool_calls, options.in_reasoning)
            constraint = json_answer(constraint, calls, options.in_reasoning)
        # Inside a grammar, which allows one call only, engines never sample a stop token: the mark would be spelt out.
        one_call = bool(options.tools) and not prompt.parallel_tool_calls and constraint is None
        if one_call and (end := self.family.call_end):
            if (end_id := self._renderer.control_id(end)) is None:
                stop = (*stop, end)
            else:
                stop_ids = stop_ids | {end_id}
        return msgspec.structs.replace(
            sampling, stop=stop, stop_token_ids=tuple(sorted(stop_ids)), constraint=constraint
        )

    def _reader(
        self, make_parser: Any, options: ParseOptions, stops: tuple[str, ...], one_call: bool = False
    ) -> Reader:
        renderer = self._renderer
        return Reader(renderer.stream(), make_parser(options), end_ids=renderer.end_ids, stops=stops, one_call=one_call)


def _of_choice(sampling: Sampling, choice: int) -> Sampling:
    """With a seed of its own, so that choices of one request differ, and differ in the same way when it is repeated."""
    if not choice or sampling.seed is None:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + choice) % 2**63)
