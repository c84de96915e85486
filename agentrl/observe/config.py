"""Settings of what a run leaves behind for looking into it."""

from __future__ import annotations

from pydantic import Field

from agentrl.section import Section


class TracesConfig(Section):
    """Where the time went: `traces/spans.jsonl` (OpenTelemetry) and `traces/trace.json` (Perfetto)."""

    enabled: bool = True
    """Write them."""

    every: int = Field(default=1, ge=1)
    """Write only each so many steps, with their groups; evaluations and swaps of all."""

    max_mb: int = Field(default=256, ge=1)
    """Most that all of them may hold together, in MiB; the oldest goes first."""
