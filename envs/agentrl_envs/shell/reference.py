"""The solution of every shell task, as a policy: from the conversation so far to the next assistant message."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentrl.messages import Message, assistant
from agentrl_envs.shell.chores import Chore


def reference(asked: Chore, messages: Sequence[Message]) -> Message:
    """Runs the chore's command, then says that it is done. Raises ValueError for a task that came without one."""
    if messages[-1].role == "tool":
        return assistant("Done.")
    if not asked.solution:
        raise ValueError("this task came without a solution")
    function = {"name": "run", "arguments": json.dumps({"command": asked.solution})}
    return assistant(None, tool_calls=[{"id": "call_0", "type": "function", "function": function}])
