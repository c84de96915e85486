"""The solution of every calculator task, as a policy: from the conversation so far to the next assistant message."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from agentrl.messages import Message, assistant


def reference(messages: Sequence[Message]) -> Message:
    """Calls the tool with what is asked, then answers with its result. Raises ValueError for another question."""
    last = messages[-1]
    if last.role == "tool":
        return assistant(last.text)
    asked = re.fullmatch(r"What is (\S+)\?", last.text)
    if asked is None:
        raise ValueError(f"the calculator asks 'What is A*B?', not {last.text!r}")
    function = {"name": "calculate", "arguments": json.dumps({"expression": asked[1]})}
    return assistant(None, tool_calls=[{"id": "call_0", "type": "function", "function": function}])
