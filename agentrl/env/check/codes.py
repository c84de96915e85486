"""The codes that findings have. Each has its section in docs/env-check.md, which a test holds to."""

from __future__ import annotations

CODES = frozenset(
    {
        # it does not run
        "cannot-be-made", "raises", "hang", "crash", "never-ends",
        # messages
        "result-shape", "message-form", "observation-empty", "not-json", "info-not-json", "first-message",
        "system-late", "history-repeated", "message-changed", "undocumented", "template-refuses", "prefix-changes",
        # tools
        "tool-schema", "tool-undocumented", "tool-untyped", "tool-parameter-undocumented", "tool-unanswered",
        "tool-fault", "tool-message-unclear",
        # rewards
        "reward-not-finite", "reward-not-a-number", "reward-partly-missing", "reward-missing", "reward-range",
        "reward-empty-answer", "reference-not-best", "reference-fails",
        # the same again
        "not-deterministic", "not-deterministic-across-processes", "instances-interfere", "reset-incomplete",
        "shared-state",
        # tasks
        "tasks-fail", "tasks-empty", "task-ids", "tasks-order", "splits-overlap",
        # what it does to the process
        "blocks-event-loop", "leak-thread", "leak-process", "leak-file", "leak-socket", "leak-task", "leak-temporary",
        "memory-growth", "changes-directory", "changes-environment", "global-random", "prints",
        # gymnasium and cost
        "gymnasium", "close-twice", "slow", "slow-start",
    }
)  # fmt: skip
