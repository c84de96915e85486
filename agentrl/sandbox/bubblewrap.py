"""bubblewrap's command line: new namespaces, a system that can only be read, and nothing else of the host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from agentrl.sandbox import seccomp
from agentrl.sandbox.base import SandboxLimits
from agentrl.sandbox.inner import WORK

# What dynamic linking and Debian's alternatives need of /etc. Passwords, keys and host names stay outside.
ETC = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")
USERS = f"root:x:0:0:root:/:/bin/false\nsandbox:x:1000:1000:sandbox:{WORK}:/bin/sh\n".encode()
GROUPS = b"root:x:0:\nsandbox:x:1000:\n"
HOSTS = b"127.0.0.1 localhost\n::1 localhost\n"


class Bind(Struct, frozen=True):
    """A folder or file of the host that can be read inside."""

    source: str
    target: str


class Bubblewrap:
    name = "bubblewrap"

    def __init__(self, program: str) -> None:
        self._program = program

    @contextmanager
    def command(
        self, inner: Sequence[str], *, limits: SandboxLimits, env: Mapping[str, str], binds: Sequence[Bind]
    ) -> Iterator[tuple[list[str], list[int]]]:
        """The command, and the descriptors that it has to inherit, which bubblewrap closes."""
        with ExitStack() as stack:
            passed: list[int] = []

            def content(name: str, data: bytes) -> str:
                file = os.memfd_create(name)
                stack.callback(os.close, file)
                os.write(file, data)
                os.lseek(file, 0, os.SEEK_SET)
                passed.append(file)
                return str(file)

            options = [*_ISOLATION, *_system(), *_writable(limits)]
            for bind in binds:  # after the writable folders, one of which may be above it
                options += ["--ro-bind", bind.source, bind.target]
            for path, data in (("/etc/passwd", USERS), ("/etc/group", GROUPS), ("/etc/hosts", HOSTS)):
                options += ["--perms", "0444", "--ro-bind-data", content("etc", data), path]
            options += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK]
            for name, value in env.items():
                options += ["--setenv", name, value]
            refused = seccomp.program()
            if refused is not None:
                options += ["--seccomp", content("seccomp", refused)]
            # As data and not as arguments: those of the first process can be read inside, and name host folders.
            hidden = content("options", b"".join(os.fsencode(option) + b"\0" for option in options))
            yield [self._program, "--args", hidden, "--", *inner], passed


_ISOLATION = [
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--disable-userns", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
    "--die-with-parent", "--new-session", "--clearenv",
]  # fmt: skip


def _system() -> list[str]:
    options = ["--ro-bind", "/usr", "/usr"]
    for folder in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", folder)
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for path_in_etc in ETC:
        options += ["--ro-bind-try", path_in_etc, path_in_etc]
    return [*options, "--proc", "/proc", "--dev", "/dev"]


def _writable(limits: SandboxLimits) -> list[str]:
    options: list[str] = []
    for path, mode in ((WORK, "0755"), ("/tmp", "1777"), ("/dev/shm", "1777")):
        options += ["--perms", mode, "--size", str(limits.disk_bytes), "--tmpfs", path]
    return options
