"""All checks over one recording."""

from __future__ import annotations

from agentrl.env.check.checks import (
    blocking,
    cost,
    determinism,
    failures,
    gymnasium,
    leaks,
    messages,
    prefix,
    rewards,
    side_effects,
    tasks,
    tools,
)
from agentrl.env.check.checks.rendering import Render, rendering
from agentrl.env.check.finding import Check, Finding, distinct
from agentrl.env.check.records import Recording

CHECKS: tuple[Check, ...] = (
    failures.check,
    tasks.check,
    messages.check,
    tools.check,
    prefix.check,
    determinism.check,
    rewards.check,
    blocking.check,
    leaks.check,
    side_effects.check,
    gymnasium.check,
    cost.check,
)

_FOLLOWS = {
    "gymnasium": (
        "not-deterministic",
        "instances-interfere",
        "raises",
        "reward-not-a-number",
        "result-shape",
        "message-form",
        "tool-schema",
    ),
    "shared-state": ("instances-interfere",),
    "system-late": ("history-repeated",),
}
"""A finding of the first code says again what one of the others said with its cause."""


def findings(recording: Recording, render: Render | None = None) -> list[Finding]:
    """What is wrong, errors first, each code once for a line. With `render`, the chat template's view too."""
    seen = [finding for check in CHECKS for finding in check(recording)]
    if render is not None:
        seen += rendering(recording, render)
    found = distinct(seen)
    codes = {finding.code for finding in found}
    return [finding for finding in found if not codes & set(_FOLLOWS.get(finding.code, ()))]
