"""The first program inside: unpacks the work folder, waits until it is watched, and becomes the program with limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.sandbox.base import MiB, SandboxLimits

WORK = "/sandbox"
UNSURE = 125
"""Exit code of a script that could not set up the sandbox, before it said that it is ready."""

OWN_PROCESSES = 1  # the first process of the sandbox

# Everything comes through standard input: no further descriptor is there to be left open.
_SCRIPT = """
size=$1; ready=$2; shift 2
echo 1000 > /proc/self/oom_score_adj
cd {work} || exit {unsure}
if [ "$size" -gt 0 ]; then head -c "$size" | tar -x --no-same-owner -f - || exit {unsure}; fi
echo "$ready"
read -r go && [ "$go" = go ] || exit {unsure}
exec prlimit "$@"
"""

GO = b"go\n"


def inner_command(
    argv: Sequence[str], limits: SandboxLimits, *, archive_size: int, ready: str, nproc: bool
) -> list[str]:
    """`archive_size` bytes of a tar archive, then `GO`, then the program's own input come on standard input. `ready`
    is written to standard output when the program is about to start."""
    script = _SCRIPT.format(work=WORK, unsure=UNSURE)
    return ["/bin/sh", "-c", script, "sandbox", str(archive_size), ready, *rlimits(limits, nproc=nproc), "--", *argv]


def rlimits(limits: SandboxLimits, *, nproc: bool) -> list[str]:
    """Options of prlimit(1): what the kernel holds each process to. The watch holds all of them together."""
    cpu = int(limits.cpu_s) + 2  # the watch comes first, and says so
    data = limits.memory_bytes + limits.memory_bytes // 4 + limits.processes * 8 * MiB  # stacks of threads are reserved
    options = {
        "core": 0,
        "cpu": cpu,
        "data": data,
        "fsize": limits.disk_bytes + MiB,  # a full disk comes first
        "memlock": MiB,
        "msgqueue": 0,
        "nofile": limits.open_files,
        "sigpending": 1024,
    }
    if nproc:
        options["nproc"] = limits.processes + OWN_PROCESSES
    return [f"--{name}={_allowed(name, value)}" for name, value in options.items()]


def _allowed(name: str, value: int) -> int:
    """No more than we have ourselves: asking for it would fail every program."""
    import resource  # not everywhere

    _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def inner_env(env: Mapping[str, str], python_folder: str | None) -> dict[str, str]:
    """The whole environment of the program."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "PATH": f"{python_folder}:{path}" if python_folder else path,
        "HOME": WORK,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "OMP_NUM_THREADS": "1",  # as many as the host has processors would be over the limit of threads
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",  # what it printed before it was killed is worth reading
        "PYTHONDONTWRITEBYTECODE": "1",
        **env,
    }
