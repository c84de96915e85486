"""Running programs that nobody trusts: `default_sandbox()` gives the sandbox of this machine."""

from __future__ import annotations

from agentrl.sandbox.base import Sandbox, SandboxLimits, SandboxRequest, SandboxResult, Verdict
from agentrl.sandbox.choose import default_sandbox, make_sandbox
from agentrl.sandbox.scripted import ScriptedSandbox

__all__ = [
    "Sandbox",
    "SandboxLimits",
    "SandboxRequest",
    "SandboxResult",
    "ScriptedSandbox",
    "Verdict",
    "default_sandbox",
    "make_sandbox",
]
