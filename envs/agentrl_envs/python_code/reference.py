"""The solution of every programming task, as a policy: from the conversation so far to the next assistant message."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.messages import Message, assistant
from agentrl_envs.python_code.tasks import CodeProblem


def reference(asked: CodeProblem, messages: Sequence[Message]) -> Message:
    """Answers with the problem's own solution."""
    return assistant(f"```python\n{asked.solution}\n```")
