"""Steps, evaluations, groups, episodes and calls as spans.

A step is a trace, with its phases in it; so is a group, with its episodes and their calls. The step links to the groups
that it trained, and each of them names its step. Names of what they say follow OpenTelemetry's conventions for
generative AI (`gen_ai.*`) where those have one; all others begin with `agentrl.`.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.observe.episode_time import PARTS, Pauses, call_slices, nanoseconds, totals
from agentrl.observe.spans import CLIENT, Attributes, Ref, Span, span_id, trace_id
from agentrl.observe.step_trace import EvaluationTrace, StepTrace
from agentrl.observe.timed import TimedEpisode, TimedGroup
from agentrl.types import Call, Trajectory


def step_ref(run: str, step: int) -> Ref:
    return Ref(trace_id(run, "step", step), span_id(run, "step", step))


def group_ref(run: str, group_id: str) -> Ref:
    return Ref(trace_id(run, "group", group_id), span_id(run, "group", group_id))


def spans_of_step(run: str, step: StepTrace) -> list[Span]:
    """The step from its first phase to the end of its last, and the phases."""
    root = step_ref(run, step.step)
    start = min((nanoseconds(phase.start) for phase in step.phases), default=0)
    end = max((nanoseconds(phase.end) for phase in step.phases), default=start)
    trained = [group_ref(run, group.group_id) for group in step.groups if group.outcome == "trained"]
    attributes: Attributes = {
        "agentrl.step": step.step,
        "agentrl.groups": len(trained),
        **{f"agentrl.{name}": value for name, value in step.numbers.items()},
    }
    spans = [Span(ref=root, name="step", start=start, end=end, attributes=attributes, links=trained)]
    for index, phase in enumerate(step.phases):
        spans.append(
            Span(
                ref=Ref(root.trace_id, span_id(run, "phase", step.step, index)),
                name=phase.name,
                start=nanoseconds(phase.start),
                end=nanoseconds(phase.end),
                parent=root,
                attributes={"agentrl.step": step.step},
            )
        )
    return spans


def span_of_evaluation(run: str, evaluation: EvaluationTrace) -> Span:
    return Span(
        ref=Ref(trace_id(run, "evaluation", evaluation.version), span_id(run, "evaluation", evaluation.version)),
        name="evaluation",
        start=nanoseconds(evaluation.start),
        end=nanoseconds(evaluation.end),
        attributes={"agentrl.version": evaluation.version, "agentrl.outcome": evaluation.outcome},
        links=[group_ref(run, group.group_id) for group in evaluation.groups],
    )


def spans_of_group(run: str, group: TimedGroup, pauses: Pauses, *, step: int | None, taken: int | None) -> list[Span]:
    """`step` took it at `taken`, unix nanoseconds; None for one that no step took."""
    root = group_ref(run, group.trace.group_id)
    shared: Attributes = {
        "agentrl.group.id": group.trace.group_id,
        "agentrl.task.id": group.trace.task.id,
        "agentrl.step": step,
    }
    attributes: Attributes = {
        **shared,
        "gen_ai.agent.name": group.trace.task.env_id,
        "agentrl.outcome": group.trace.outcome,
        "agentrl.admitted_at_version": group.trace.admitted_at_version,
        "agentrl.ready_ns": None if taken is None else max(0, taken - group.end),
    }
    spans = [Span(ref=root, name="group", start=group.start, end=group.end, attributes=attributes)]
    for episode in group.episodes:
        spans += _spans_of_episode(run, root, group, episode, pauses, shared)
    if group.scoring is not None:
        start, end = group.scoring
        ref = Ref(root.trace_id, span_id(run, "reward", group.trace.group_id))
        spans.append(Span(ref=ref, name="reward", start=start, end=max(start, end), parent=root, attributes=shared))
    return spans


def _spans_of_episode(
    run: str, root: Ref, group: TimedGroup, episode: TimedEpisode, pauses: Pauses, shared: Attributes
) -> Iterator[Span]:
    trajectory, played = episode.trace.trajectory, group.end if group.scoring is None else group.scoring[0]
    ref = Ref(root.trace_id, span_id(run, "episode", trajectory.session_id))
    attributes: Attributes = {
        **shared,
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": group.trace.task.env_id,
        "gen_ai.conversation.id": trajectory.session_id,
        "agentrl.mode": trajectory.mode,
        "agentrl.outcome": episode.trace.outcome,
        "agentrl.stop_reason": trajectory.stop_reason,
        "agentrl.reward": trajectory.reward,
        "agentrl.calls": len(trajectory.calls),
        "agentrl.sampled_tokens": sum(len(call.token_ids) for call in trajectory.calls),
        "agentrl.trained_tokens": episode.trace.trained_tokens,
        "agentrl.max_lag": episode.trace.max_lag,
        "agentrl.versions": sorted({span.version for call in trajectory.calls for span in call.versions}),
        "agentrl.siblings_ns": max(0, played - episode.end),
        **{f"agentrl.{part}_ns": episode.spent[part] for part in PARTS},
    }
    yield Span(
        ref=ref,
        name=f"invoke_agent {group.trace.task.env_id}",
        start=episode.start,
        end=episode.end,
        parent=root,
        attributes=attributes,
    )
    for call in trajectory.calls:
        yield _span_of_call(run, ref, trajectory, call, pauses)


def _span_of_call(run: str, episode: Ref, trajectory: Trajectory, call: Call, pauses: Pauses) -> Span:
    spent = totals(call_slices(call, pauses))
    start = nanoseconds(call.started_at)
    return Span(
        ref=Ref(episode.trace_id, span_id(run, "call", call.call_id)),
        name="chat policy",
        start=start,
        end=max(start, nanoseconds(call.ended_at)),
        parent=episode,
        kind=CLIENT,
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "policy",
            "gen_ai.conversation.id": trajectory.session_id,
            "gen_ai.response.id": call.call_id,
            "gen_ai.response.finish_reasons": [call.finish_reason],
            "gen_ai.usage.input_tokens": len(call.prompt_token_ids),
            "gen_ai.usage.output_tokens": len(call.token_ids),
            "agentrl.engine": call.engine_id,
            "agentrl.engines": len(call.segments) or 1,
            "agentrl.versions": [span.version for span in call.versions],
            "agentrl.untrainable": call.untrainable,
            **{f"agentrl.{part}_ns": spent[part] for part in PARTS if spent[part]},
        },
    )
