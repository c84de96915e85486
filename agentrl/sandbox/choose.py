"""Which sandbox this machine has: tried, not assumed."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable

from agentrl.errors import ConfigError, SandboxFault, SandboxUnavailable
from agentrl.sandbox import host
from agentrl.sandbox.base import Sandbox, SandboxLimits
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.docker import DEFAULT_IMAGE, DockerSandbox
from agentrl.sandbox.local import LocalSandbox
from agentrl.sandbox.unsafe import UnsafeSandbox
from agentrl.sandbox.unshare import Unshare

ENV_VARIABLE = "AGENTRL_SANDBOX"
IMAGE_VARIABLE = "AGENTRL_SANDBOX_IMAGE"
AUTO = "auto"

_FIX = (
    "install bubblewrap from your system's packages; in a container, allow it to make user namespaces (for Docker: "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined); or, for programs that you trust, set "
    f"{ENV_VARIABLE}=unsafe"
)
_PROBE = SandboxLimits(wall_s=20, cpu_s=20)
_lock = threading.Lock()


def default_sandbox(kind: str | None = None) -> Sandbox:
    """The sandbox of a kind; or that the environment variable AGENTRL_SANDBOX names; or the best that works here, which
    is bubblewrap, then unshare. Tried once a process, then kept.

    Raises SandboxUnavailable when there is no isolation: it is never left out silently. ConfigError for another kind.
    """
    with _lock:  # one probe, however many ask at once
        return _made(kind or os.environ.get(ENV_VARIABLE) or AUTO)


def make_sandbox(kind: str = AUTO) -> Sandbox:
    """A new sandbox: "auto", "bubblewrap", "unshare", "docker" or "unsafe".

    Raises SandboxUnavailable when it does not work here, ConfigError for another kind.
    """
    if kind == "unsafe":
        return UnsafeSandbox()
    if kind != AUTO and kind not in _KINDS:
        raise ConfigError(f"there is no sandbox {kind!r}; use one of {', '.join([AUTO, *_KINDS, 'unsafe'])}")
    failures = []
    for name in _LOCAL if kind == AUTO else (kind,):
        try:
            return _tried(_KINDS[name]())
        except SandboxFault as error:
            failures.append(f"{name}: {error}")
    raise SandboxUnavailable(f"programs cannot be isolated here ({'; '.join(failures)}); {_FIX}")


@functools.cache
def _made(kind: str) -> Sandbox:
    return make_sandbox(kind)


def _tried(sandbox: Sandbox) -> Sandbox:
    result = sandbox.run_blocking(["true"], limits=_PROBE)
    if not result.ok:
        raise SandboxFault(f"`true` did not run in it: {result.reason}: {result.stderr.strip()[-300:]}")
    return sandbox


def _bubblewrap() -> Sandbox:
    program = host.program("bwrap")
    if program is None:
        raise SandboxUnavailable("the program bwrap is not installed")
    return LocalSandbox(Bubblewrap(program))


def _unshare() -> Sandbox:
    program, setpriv = host.program("unshare"), host.program("setpriv")
    if program is None or setpriv is None:
        raise SandboxUnavailable("the programs unshare and setpriv (util-linux) are not installed")
    return LocalSandbox(Unshare(program, setpriv, host.find_python(None).executable))


def _docker() -> Sandbox:
    return DockerSandbox(os.environ.get(IMAGE_VARIABLE) or DEFAULT_IMAGE)


_KINDS: dict[str, Callable[[], Sandbox]] = {"bubblewrap": _bubblewrap, "unshare": _unshare, "docker": _docker}
_LOCAL = ("bubblewrap", "unshare")
