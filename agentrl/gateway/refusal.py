"""A request that the gateway refuses, in no dialect yet. Each dialect writes it as its own error object."""

from __future__ import annotations

from agentrl.errors import AgentRLError


class Refusal(AgentRLError):
    """One clean no. `code` is for programs, the message for people, `param` names the offending field.

    `retry_after` (seconds) is set where trying again may help; clients are told not to retry otherwise.
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


def invalid(param: str | None, message: str) -> Refusal:
    """The client asked for something that is wrong or that this gateway does not do."""
    return Refusal(400, "invalid_request", message, param=param)
