"""The modes of the loop. One loop has all of them: a mode is a name for a few keys, and nothing else reads it."""

from __future__ import annotations

from typing import Any, Literal

LoopMode = Literal["sync", "one_step_off", "async", "colocated"]

TABLES: dict[LoopMode, dict[str, Any]] = {
    "sync": {"staleness": {"max_lag": 0}},
    "one_step_off": {"staleness": {"max_lag": 1}},
    "async": {"staleness": {"max_lag": 4}},
    "colocated": {"staleness": {"max_lag": 0}, "engine": {"sleep_level": 1}},
}
"""What each sets where the run file does not say otherwise, in the run file's own form."""

LAGS: dict[LoopMode, tuple[int, int | None]] = {
    "sync": (0, 0),
    "one_step_off": (1, 1),
    "async": (2, None),
    "colocated": (0, 0),
}
"""The `staleness.max_lag` that each may have, from and to."""


def table(mode: str) -> dict[str, Any]:
    """What a mode sets; nothing for a name that is none, which the configuration refuses."""
    return next((keys for name, keys in TABLES.items() if name == mode), {})


def conflict(mode: LoopMode | None, *, max_lag: int, sleep_level: int | None) -> str | None:
    """What is wrong with a mode beside the keys that it stands for, and the fix; None when they agree."""
    if mode is not None:
        least, most = LAGS[mode]
        if max_lag < least or (most is not None and max_lag > most):
            wanted = f"{least}" if least == most else f"{least} or more"
            return f'mode = "{mode}" is staleness.max_lag = {wanted}, and it is {max_lag}; leave one of the two out'
        if sleep_level is None and mode == "colocated":
            return 'mode = "colocated" is engine.sleep_level = 1 or 2, and it is "off"; leave one of the two out'
        if sleep_level is not None and mode != "colocated":
            return (
                f'engine.sleep_level = {sleep_level} is mode = "colocated", and mode is "{mode}"; change one of the two'
            )
    if sleep_level is not None and max_lag > 0:
        return (
            f"engine.sleep_level = {sleep_level} has engines asleep while the trainer steps, so nothing is sampled "
            f"then; set staleness.max_lag = 0 (it is {max_lag}), or leave engine.sleep_level out"
        )
    return None
