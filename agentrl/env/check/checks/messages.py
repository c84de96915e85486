"""What the environment returns: chat messages in a form that templates and SDKs take."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.env.check.finding import Finding, error, warning
from agentrl.env.check.records import CallRecord, EpisodeRecord, Recording

_FIXES = {
    "result-shape": "return (observation, info) from reset and (observation, reward, terminated, truncated, info) "
    "from step",
    "message-form": "return a list of agentrl.user('...'), agentrl.system('...') or agentrl.tool_message(...)",
    "observation-empty": "return at least one message, or end the episode with terminated or truncated",
    "not-json": "keep to strings, numbers, lists and dicts with string keys",
    "info-not-json": "keep to strings, numbers, lists and dicts with string keys, or leave it out of info",
    "tool-schema": "offer OpenAI's form: {'type': 'function', 'function': {'name', 'description', 'parameters'}}",
}
_WARNINGS = ("info-not-json",)


def check(recording: Recording) -> Iterator[Finding]:
    if recording.subject is not None and not recording.subject.documented:
        told = f"{recording.subject.name} has no docstring, so `agentrl env list` cannot say what it is"
        yield warning("undocumented", told, "say in one line what is asked and rewarded", recording.place("class"))
    for episode in recording.episodes:
        yield from _of_episode(recording, episode)


def _of_episode(recording: Recording, episode: EpisodeRecord) -> Iterator[Finding]:
    tools = next((call.tools for call in episode.calls if call.tools), None)
    for number, call in enumerate(episode.calls):
        for breach in call.breaches:
            make = warning if breach.code in _WARNINGS else error
            yield make(breach.code, breach.text, _FIXES[breach.code], recording.place(call.method))
        one_speaker = recording.subject is None or not recording.subject.roles
        if call.method == "step" and one_speaker and tools and call.raised is None and not call.breaches:
            yield from _answers(recording, call)
        yield from _roles(recording, call, number)


def _answers(recording: Recording, step: CallRecord) -> Iterator[Finding]:
    """Each call of the action has one answer, unless the episode is over."""
    if step.terminated or step.truncated or step.observation is None:
        return
    called = [str(call.get("id")) for call in (step.action or {}).get("tool_calls") or []]
    answered = [str(message.get("tool_call_id")) for message in step.observation if message.get("role") == "tool"]
    if sorted(called) != sorted(answered):
        yield error(
            "tool-unanswered",
            f"step was given the tool calls {called} and answered {answered}",
            "answer every call by one message agentrl.tool_message(text, tool_call_id=call['id']), unknown tools and "
            "wrong arguments included",
            recording.place("step"),
        )


def _roles(recording: Recording, call: CallRecord, number: int) -> Iterator[Finding]:
    roles = [message.get("role") for message in call.observation or []]
    if call.method == "step" and {"system", "developer"} & set(roles):
        yield warning(
            "system-late",
            "step returned a system message, which many chat templates refuse or move after the first turn",
            "put what it says into a user or tool message",
            recording.place("step"),
        )
    if call.method == "reset" and roles and roles[0] in ("assistant", "tool"):
        yield warning(
            "first-message",
            f"reset's first message is from {roles[0]!r}, which many chat templates refuse",
            "begin with a system or user message",
            recording.place("reset"),
        )
