"""One choice while it is sampled: where it ends, and what was sampled beyond."""

from __future__ import annotations

from gateway_builders import letters, renderer

from agentrl.gateway.generation import Generation, Plan
from agentrl.gateway.parsers.base import ParseOptions
from agentrl.gateway.parsers.raw import RawParser
from agentrl.gateway.reader import Reader
from agentrl.types import Sampling, TokenChunk


def test_what_a_limit_and_then_a_stop_string_cut_off_is_all_counted() -> None:
    def new_reader() -> Reader:
        return Reader(renderer().stream(), RawParser(ParseOptions()), end_ids=set(), stops=("b",))

    plan = Plan(call_id="c", parent=None, prompt_ids=[1], sampling=Sampling(stop=("b",)), new_reader=new_reader)
    generation = Generation(plan, plan.sampling, None)
    logprobs = [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6]
    generation.add(TokenChunk(token_ids=letters("abcdef"), logprobs=logprobs), tokens_left=4)
    assert (generation.sample.token_ids, generation.sample.finish_reason) == (letters("ab"), "stop")
    assert generation.overrun == TokenChunk(token_ids=letters("cdef"), logprobs=[-0.3, -0.4, -0.5, -0.6])
    assert generation.overrun_reason == "past_stop"
