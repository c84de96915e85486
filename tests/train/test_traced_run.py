"""Real workers and gateway, a scripted engine: every trained episode's time is in the traces and adds up."""

from __future__ import annotations

import json
from pathlib import Path

from test_loop import World
from test_rollout_gateway import solve, stack
from test_rollout_gateway import tasks as calculator_tasks
from twins import TwinScorer

from agentrl.engine.scripted import ScriptedEngine
from agentrl.observe.config import TracesConfig
from agentrl.observe.episode_time import PARTS
from agentrl.observe.spans import read_line
from agentrl.observe.traces import SPANS, TRACE, TraceWriter
from agentrl.rollout.config import RolloutConfig
from agentrl.train.config import EvaluationConfig, StalenessConfig
from agentrl.train.producer import GroupProducer
from agentrl.train.tracing import StepTracer


async def test_the_parts_of_every_trained_episode_are_its_time(tmp_path: Path) -> None:
    async with ScriptedEngine(solve) as engine, stack(engine, RolloutConfig(group_size=2)) as (worker, store):
        world = World(tmp_path, steps=2, evaluation=EvaluationConfig(tasks=0))
        writer = TraceWriter(tmp_path, TracesConfig(), run="demo", swaps=store.swaps)
        world.loop.tracer = StepTracer(writer)
        world.loop.staleness = StalenessConfig(max_lag=10)
        world.loop.producer = GroupProducer(
            tasks=iter(calculator_tasks(20)),
            rollouts=worker,
            scorer=TwinScorer(),
            store=store,
            loop=world.loop.config,
            staleness=world.loop.staleness,
            group_size=2,
        )
        await world.loop.run()
        writer.close()
        trained = {each.session_id for each in store.settlements() if each.outcome == "trained"}
    assert writer.counts == {"written": 2, "left_out": 0, "failed": 0}
    spans = [span for line in (tmp_path / SPANS).read_bytes().splitlines() for span in read_line(line)]
    episodes = {
        each.attributes["gen_ai.conversation.id"]: each for each in spans if "agentrl.tool_ns" in each.attributes
    }
    assert len(trained) == 8
    assert trained <= episodes.keys()
    for span in (episodes[session_id] for session_id in trained):
        spent = {part: span.attributes[f"agentrl.{part}_ns"] for part in PARTS}
        assert sum(spent.values()) == span.end - span.start + spent["reward"]
        assert min(spent["prefill"], spent["decode"], spent["tool"]) > 0, "the gateway saw the first token"
        calls = [each for each in spans if each.parent_id == span.ref.span_id]
        assert [each.name for each in calls] == ["chat policy"] * 2
        assert all(span.start <= each.start <= each.end <= span.end for each in calls)
    events = json.loads((tmp_path / TRACE).read_text())
    assert len([event for event in events if event["ph"] == "f"]) == len(trained)
