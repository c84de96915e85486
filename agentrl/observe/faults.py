"""What died in a run and came back."""

from __future__ import annotations

from msgspec import Struct


class FaultRecord(Struct, kw_only=True):
    """One fault of one part, from when it was seen until it was over."""

    part: str  # by the name of its log: "engine-0", "gateway", "rollout-0", "reward-judge"
    what: str  # as the part's name goes on: "died", "did not answer 4 health checks in a row", ...
    detected_s: float  # from when it was last seen well until the fault was seen
    recovered_s: float | None  # from then until it could be counted on again; None: it was given up
    restarts: int  # how often it was started again for that
    elapsed_s: float = 0.0  # when it was over, since the run began; the recorder fills it in
