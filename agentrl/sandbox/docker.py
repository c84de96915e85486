"""The sandbox in a Docker container, through the `docker` command. See docs/sandbox.md.

One container a run. It sleeps as root without capabilities; the program, and all that we ask about it, run beside it as
a user without rights. So the files are still there when the program is dead, and nothing of it can hold up the end.
"""

from __future__ import annotations

import contextlib
import io
import math
import secrets
import subprocess
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl.errors import SandboxFault, SandboxUnavailable
from agentrl.sandbox import host, watch, workfolder
from agentrl.sandbox.base import MiB, SandboxLimits, SandboxRequest, SandboxResult, Verdict, relative
from agentrl.sandbox.inner import WORK, inner_env
from agentrl.sandbox.pump import Pump
from agentrl.sandbox.scratch import ScratchFolder
from agentrl.sandbox.supervise import DiskUse, Outcome, supervise
from agentrl.sandbox.threaded import ThreadedSandbox, result_of
from agentrl.sandbox.usage import Usage

DEFAULT_IMAGE = "python:3.11-slim"

_USER = "1000:1000"
_CALL_S = 60.0  # seconds for one answer of the engine
_SPARE_S = 300  # seconds that a container lasts beyond its program's limit, if nobody is left to remove it
_HEADERS = 1536  # bytes of an archive for one file, beside its content


class DockerSandbox(ThreadedSandbox):
    """Needs an engine that this user may talk to, and an image with Python, `sh`, `tar`, `stat` and `sleep`.

    Args:
        image: Never pulled by itself: `docker pull` it first.
        runtime: A runtime of the engine's, for instance "runsc" (gVisor).
        program: The command line client; what is looked up on PATH when left out.
        at_once: How many containers run at a time.
    """

    def __init__(
        self,
        image: str = DEFAULT_IMAGE,
        *,
        runtime: str | None = None,
        program: str | None = None,
        at_once: int = 16,
    ) -> None:
        super().__init__(at_once)
        found = program or host.program("docker")
        if found is None:
            raise SandboxUnavailable("the program docker is not installed")
        self._docker, self._image, self._runtime = found, image, runtime

    def __repr__(self) -> str:
        return f"DockerSandbox({self._image})"

    def execute(self, request: SandboxRequest, cancelled: threading.Event) -> SandboxResult:
        archive = workfolder.pack(request)
        folder = ScratchFolder()
        container = _Container(self._docker, f"agentrl-{secrets.token_hex(8)}")
        try:
            container.call(self._create(container.name, request.limits))
            if archive:
                container.exec(["tar", "-x", "--no-same-owner", "-C", WORK, "-f", "-"], stdin=archive)
            pump = Pump(container.start(request), request.limits.output_bytes)
            pump.feed(request.stdin, last=True)
            outcome = container.judge(supervise(pump, container, request.limits, cancelled), request.limits)
            if request.collect or request.workspace is not None:
                unpack(container.files(request.limits), folder.path)
            return result_of(request, outcome, pump, folder.path)
        finally:
            folder.remove()
            container.remove()

    def _create(self, name: str, limits: SandboxLimits) -> list[str]:
        """Starts the container: no network, no capabilities, nothing to write but memory of a fixed size."""
        cpu, size = math.ceil(limits.cpu_s), limits.disk_bytes
        tmpfs = f"rw,exec,nosuid,nodev,size={size},nr_inodes={limits.disk_files},uid=1000,gid=1000"
        options = [
            "run", "--detach", "--rm", "--name", name, "--pull", "never", "--label", "agentrl.sandbox=1",
            "--network", "none", "--ipc", "private", "--hostname", "sandbox", "--init", "--user", "0:0",
            "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            "--memory", str(limits.memory_bytes + 3 * size), "--memory-swap", str(limits.memory_bytes + 3 * size),
            "--pids-limit", str(limits.processes + 8), "--oom-score-adj", "1000", "--shm-size", str(size),
            "--tmpfs", f"{WORK}:{tmpfs},mode=0755", "--tmpfs", f"/tmp:{tmpfs},mode=1777",
            "--ulimit", "core=0:0", "--ulimit", f"cpu={cpu}:{cpu + 1}", "--ulimit", f"fsize={size + MiB}",
            "--ulimit", f"nofile={limits.open_files}:{limits.open_files}",
        ]  # fmt: skip
        if self._runtime is not None:
            options += ["--runtime", self._runtime]
        return [*options, self._image, "sleep", str(math.ceil(limits.wall_s) + _SPARE_S)]


class _Container:
    """One container, by its name: what the program is locked in."""

    def __init__(self, docker: str, name: str) -> None:
        self._docker, self.name = docker, name
        self._dead = False

    def call(self, arguments: Sequence[str], *, stdin: bytes = b"", checked: bool = True) -> bytes:
        """Raises SandboxFault when the engine refuses or does not answer."""
        try:
            done = subprocess.run(
                [self._docker, *arguments], input=stdin, capture_output=True, timeout=_CALL_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxFault(f"docker {arguments[0]} did not answer: {error}") from error
        if checked and done.returncode != 0:
            why = done.stderr.decode("utf-8", "replace").strip()[-500:]
            raise SandboxFault(f"docker {arguments[0]} failed: {why or f'exit code {done.returncode}'}")
        return done.stdout

    def exec(self, argv: Sequence[str], *, stdin: bytes = b"", checked: bool = True) -> bytes:
        interactive = ["--interactive"] if stdin else []
        return self.call(["exec", *interactive, "--user", _USER, self.name, *argv], stdin=stdin, checked=checked)

    def start(self, request: SandboxRequest) -> subprocess.Popen[bytes]:
        variables = [f"--env={name}={value}" for name, value in inner_env(request.env, None).items()]
        # Through a shell, whose exit code for a program that is not there is 127; engines differ in theirs.
        started = ["sh", "-c", 'exec "$@"', "sh", *request.argv]
        inside = ["--interactive", "--user", _USER, "--workdir", WORK, *variables, self.name, *started]
        return subprocess.Popen(
            [self._docker, "exec", *inside],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def usage(self) -> Usage:
        return Usage(0, 0, 0.0)  # the engine holds it to its limits

    def memory_bytes(self) -> int:
        return 0

    def disk(self) -> DiskUse:
        """Asked once, in the end: the file systems refuse what is too much."""
        if not self._dead:
            return DiskUse(full=False, files=0)
        free = self.exec(["stat", "-f", "-c", "%a %d", WORK, "/tmp", "/dev/shm"]).split()
        return DiskUse(full=b"0" in free, files=0)

    def kill(self) -> None:
        """Everything that the program's user runs, at once; the container lives on."""
        self.exec(["sh", "-c", "kill -9 -1"], checked=False)
        self._dead = True

    def is_dead(self, within_s: float) -> bool:
        return self._dead

    def judge(self, outcome: Outcome, limits: SandboxLimits) -> Outcome:
        """The kernel kills for memory inside; only the engine can tell that from another SIGKILL."""
        if outcome.ending.verdict is not Verdict.KILLED:
            return outcome
        told = self.call(["inspect", "--format", "{{.State.OOMKilled}}", self.name])
        if told.strip() != b"true":
            return outcome
        return msgspec.structs.replace(outcome, ending=watch.too_much_memory(limits), exit_code=None)

    def files(self, limits: SandboxLimits) -> bytes:
        """The work folder as a tar archive. Raises SandboxFault when it is larger than its disk can have been."""
        script = f"cd {WORK} && chmod -R u+rwX . 2>/dev/null; exec tar -c -f - ."
        most = limits.disk_bytes + _HEADERS * limits.disk_files + MiB
        archive = self.exec(["sh", "-c", f"({script}) | head -c {most + 1}"])
        if len(archive) > most:
            raise SandboxFault(f"the work folder is larger than {most} bytes; it has files with holes")
        return archive

    def remove(self) -> None:
        with contextlib.suppress(SandboxFault):  # it goes by itself when its sleep is over
            self.call(["rm", "--force", self.name], checked=False)


def unpack(archive: bytes, folder: Path) -> None:
    """Regular files, folders and links of an archive that nobody trusts; nothing is written through a link."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            with contextlib.suppress(ValueError, OSError):
                path = folder / relative(member.name.removeprefix("./"))
                if any(part.is_symlink() for part in path.parents if part.is_relative_to(folder)):
                    continue
                if member.isdir():
                    path.mkdir(exist_ok=True)
                elif member.issym():
                    path.symlink_to(member.linkname)
                elif member.isreg() and (content := members.extractfile(member)) is not None:
                    with path.open("xb") as file:
                        file.write(content.read())
                    path.chmod(member.mode & 0o777 | 0o600)
                elif member.islnk():
                    source = folder / relative(member.linkname.removeprefix("./"))
                    if source.is_file() and not source.is_symlink():
                        path.hardlink_to(source)
