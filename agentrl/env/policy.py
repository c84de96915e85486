"""What an agent program is given: where the policy is, and the key for this one episode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import EnvironmentFault
from agentrl.messages import Message

OPENAI = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY")
ANTHROPIC = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
MODEL = "AGENTRL_MODEL"
ROLE = "AGENTRL_ROLE_"


@dataclass(frozen=True)
class Policy:
    """One episode's way to the policy. It opens this episode's session, and nothing once the program has ended."""

    base_url: str  # ends in /v1, ready for an OpenAI SDK
    api_key: str = field(repr=False)
    model: str
    ask: Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], int | None], Any] = field(repr=False)
    roles: Mapping[str, Policy] = field(default_factory=dict, repr=False)

    def env(self) -> dict[str, str]:
        """The variables that SDKs read: `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `ANTHROPIC_BASE_URL`, …

        `AGENTRL_MODEL` is the model's name. Of each role NAME there are `AGENTRL_ROLE_NAME_BASE_URL` and `_API_KEY`.
        """
        variables = {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,  # what the SDK's first generation read
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
            MODEL: self.model,
        }
        for name, policy in self.roles.items():
            prefix = ROLE + "".join(char if char.isalnum() else "_" for char in name).upper()
            variables |= {f"{prefix}_BASE_URL": policy.base_url, f"{prefix}_API_KEY": policy.api_key}
        return variables

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
    ) -> Awaitable[Message] | Any:
        """The next assistant message, for a program without an SDK: `await policy.chat(messages)`.

        In a plain function, where there is nothing to await with, it returns the message itself. Raises
        SessionLimitReached when a limit of the episode is used up, ContextOverflow when the messages leave no room
        for an answer, GatewayError when there is none; a program may let all of them through.
        """
        return self.ask(messages, tools, max_tokens)

    def role(self, name: str) -> Policy:
        """The policy as this role of the program speaks with it. Raises EnvironmentFault for a role not declared."""
        if name not in self.roles:
            raise EnvironmentFault(
                f"the program has no role {name!r}, only {', '.join(self.roles) or 'none'}; name each in its `roles`"
            )
        return self.roles[name]


def without_policy(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables without those that lead to the policy: what a grader runs with."""
    return {name: value for name, value in variables.items() if not _leads_to_it(name)}


def _leads_to_it(name: str) -> bool:
    return name in (*OPENAI, *ANTHROPIC, MODEL) or name.startswith(ROLE)


def redacted(text: str, keys: Iterable[str]) -> str:
    """The text without these keys, for logs."""
    for key in keys:
        text = text.replace(key, "[key]")
    return text
