"""gymnasium's contract: its own checker passes, and `close` may be called twice."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentrl.env.check.finding import Finding, error, warning
from agentrl.env.check.records import Recording

_COLOURS = re.compile(r"\x1b\[\d*m")
_MISSING_REWARD = "The reward returned by `step()` must be a float"  # a reward of None is a missing one here


def check(recording: Recording) -> Iterator[Finding]:
    record = recording.gymnasium
    if record is None:
        return
    if record.raised is not None:
        make = warning if record.by_author else error
        called = " when it was called as gymnasium's checker does, without a task's options" if record.by_author else ""
        yield make(
            "gymnasium",
            f"gymnasium.utils.env_checker.check_env raised {record.raised.type}: {record.raised.text}{called}",
            "make reset(seed=...) work without options; gymnasium's documentation describes the contract",
            record.raised.place or recording.place("reset"),
        )
    for warned in record.warnings:
        text = _COLOURS.sub("", warned)
        if _MISSING_REWARD in text:
            continue
        told = f"gymnasium.utils.env_checker.check_env warns: {' '.join(text.split())}"
        yield warning("gymnasium", told, "follow gymnasium's advice", recording.place("class"))
    if record.second_close is not None:
        raised = record.second_close
        yield error(
            "close-twice",
            f"a second close raised {raised.type}: {raised.text}",
            "make close do nothing when everything is closed",
            raised.place or recording.place("close"),
        )
