"""Rewards are finite numbers in their range, and the right answer earns the most."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.env.check.finding import Finding, error, warning
from agentrl.env.check.records import EpisodeRecord, Place, Recording

_SLACK = 1e-9


def check(recording: Recording) -> Iterator[Finding]:
    place = _scoring(recording)
    played = recording.of("alone")
    for episode in recording.episodes:
        yield from _values(episode, place)
    yield from _missing(played, place)
    yield from _range(recording, played, place)
    yield from _merit(recording, played, place)
    ended = [episode for episode in played if episode.ended]
    long = [episode for episode in played if not episode.failed and not _cut_short(episode)]
    if long and not ended:
        most = max(len(episode.steps) for episode in long)
        told = f"none of {len(long)} episodes ended, the longest after {most} steps"
        yield warning("never-ends", told, "terminate or truncate after some number of steps", recording.place("step"))


def _scoring(recording: Recording) -> Place | None:
    places = recording.subject.places if recording.subject is not None else {}
    return places.get("score") or places.get("grade") or recording.place("step")


def _values(episode: EpisodeRecord, place: Place | None) -> Iterator[Finding]:
    for step in episode.steps:
        if step.raised is not None or step.breaches:
            continue
        if step.reward_kind == "not_finite":
            told = f"a step gave the reward {step.reward_text} (policy {episode.policy!r})"
            yield error("reward-not-finite", told, "give a finite number, or None when it is missing", place)
        elif step.reward_kind == "not_a_number":
            told = f"a step gave the reward {step.reward_text}, which is no number"
            yield error("reward-not-a-number", told, "give a float, or None when it is missing", place)
    kinds = {step.reward_kind for step in episode.steps if step.raised is None and not step.breaches}
    if kinds == {"missing", "number"}:
        yield error(
            "reward-partly-missing",
            "some steps of an episode have a reward and some None, so the episode's sum is missing",
            "give 0.0 for a step that earns nothing; None says that the reward is not known",
            place,
        )


def _missing(played: list[EpisodeRecord], place: Place | None) -> Iterator[Finding]:
    ended = [episode for episode in played if episode.ended]
    if ended and all(step.reward_kind == "missing" for episode in ended for step in episode.steps):
        yield warning(
            "reward-missing",
            f"none of {len(ended)} finished episodes has a reward",
            "define score(message), or name a reward service in the run file",
            place,
        )


def _range(recording: Recording, played: list[EpisodeRecord], place: Place | None) -> Iterator[Finding]:
    declared = recording.subject.reward_range if recording.subject is not None else None
    if declared is None:
        return
    for episode in played:
        total = episode.total_reward
        if episode.ended and total is not None and not declared[0] - _SLACK <= total <= declared[1] + _SLACK:
            yield error(
                "reward-range",
                f"an episode earned {total:g}, outside the declared reward_range {declared} (policy "
                f"{episode.policy!r})",
                "mend the reward or the declaration",
                place,
            )


def _merit(recording: Recording, played: list[EpisodeRecord], place: Place | None) -> Iterator[Finding]:
    by_task: dict[str, dict[str, float]] = {}
    for episode in played:
        if episode.ended and episode.total_reward is not None:
            by_task.setdefault(episode.task_id, {})[episode.policy] = episode.total_reward
    reference = {episode.task_id for episode in played if episode.policy == "reference" and not episode.failed}
    for task_id, earned in by_task.items():
        best = earned.get("reference")
        if best is None:
            if task_id not in reference and earned.get("silent", 0.0) > 0:
                told = f"an empty answer earns {earned['silent']:g} on task {task_id!r}"
                yield warning("reward-empty-answer", told, "give nothing for an answer that says nothing", place)
            continue
        empty = earned.get("silent")
        if empty is not None and best <= empty:
            told = f"the reference solution earns {best:g} and an empty answer {empty:g} on task {task_id!r}"
            yield error("reference-not-best", told, "mend score or the reference solution", place)
            continue
        for policy, got in earned.items():
            if got > best + _SLACK:
                told = f"policy {policy!r} earns {got:g} on task {task_id!r}, more than the reference's {best:g}"
                yield error("reference-not-best", told, "mend what can be collected without solving the task", place)
    for task_id in sorted(reference - {task for task, earned in by_task.items() if "reference" in earned}):
        if any("silent" in earned for earned in by_task.values()):
            told = f"the reference solution does not finish task {task_id!r}"
            yield error("reference-fails", told, "mend the reference solution", recording.place("reference"))


def _cut_short(episode: EpisodeRecord) -> bool:
    broken = ("result-shape", "message-form", "not-json")
    return any(
        call.method == "reference" or any(breach.code in broken for breach in call.breaches) for call in episode.calls
    )
