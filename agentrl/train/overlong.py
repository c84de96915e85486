"""Which episodes a limit ended rather than the policy: what it would have come to is unknown, and so is its reward."""

from __future__ import annotations

from agentrl.types import StopReason, Trajectory

_LIMITS = {
    StopReason.TRUNCATED,
    StopReason.MAX_TURNS,
    StopReason.MAX_TOKENS,
    StopReason.MAX_TOOL_CALLS,
    StopReason.CONTEXT,
}


def overlong_reason(trajectory: Trajectory) -> str | None:
    """`overlong_` and the limit's name; `overlong_length` where the last answer was cut off. None where no limit did.

    A deadline is not among them: what is slow may be the machine, so it is a failure and has no reward.
    """
    if trajectory.stop_reason in _LIMITS:
        return f"overlong_{trajectory.stop_reason}"
    if trajectory.calls and trajectory.calls[-1].finish_reason == "length":
        return "overlong_length"
    return None
