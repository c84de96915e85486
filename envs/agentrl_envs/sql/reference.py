"""The solution of every SQL task, as a policy: from the conversation so far to the next assistant message."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentrl.messages import Message, assistant
from agentrl_envs.sql.tasks import SqlProblem


def reference(asked: SqlProblem, messages: Sequence[Message]) -> Message:
    """Sends the problem's own query, then answers with the first value of the first row."""
    last = messages[-1]
    if last.role == "tool":
        header, *rows = last.text.splitlines()
        return assistant((rows[0] if rows else header).split("|")[0])
    function = {"name": "sql", "arguments": json.dumps({"query": asked.query})}
    return assistant(None, tool_calls=[{"id": "call_0", "type": "function", "function": function}])
