"""The same sandbox where bubblewrap is missing: util-linux's unshare, and mounts by a shell script of our own.

About 40 ms slower a run, because a Python inside has to install the filter of system calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import SandboxFault
from agentrl.sandbox import seccomp
from agentrl.sandbox.base import SandboxLimits
from agentrl.sandbox.bubblewrap import ETC, GROUPS, HOSTS, USERS, Bind
from agentrl.sandbox.inner import WORK

_DEVICES = ("null", "zero", "full", "random", "urandom")

# Runs as root of a new user namespace, with nobody's rights outside it. `set -e`: a step that fails starts nothing.
_MOUNTS = """
set -e
root=$1; disk=$2; shift 2
mount --make-rprivate /
mount -t tmpfs -o mode=0755,size=1m,nr_inodes=4096,nosuid,nodev sandbox $root
cd $root
mkdir -p proc dev etc usr tmp .old {work}
for folder in {work} tmp; do
    mount -t tmpfs -o "mode=1777,size=$disk,nosuid,nodev" sandbox $folder
done
chmod 0755 {work}
read_only() {{
    if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")"; : > "$root$2"; fi
    mount --rbind "$1" "$root$2"
    cat /proc/self/mountinfo | while read -r _ _ _ _ point options _; do
        case "$point" in "$root$2"|"$root$2"/*)
            mount -o "remount,bind,$options,ro,nosuid,nodev" "$(printf %b "$point")" ;;
        esac
    done
}}
while [ "$1" != -- ]; do
    case "$1" in
        link) ln -s "$2" "$root$3"; shift 3 ;;
        bind) read_only "$2" "$3"; shift 3 ;;
        file) printf '%s' "$3" > "$root$2"; shift 3 ;;
    esac
done
shift
mount -t tmpfs -o mode=0755,size=64k,nr_inodes=64,nosuid sandbox dev
for device in {devices}; do : > dev/$device; mount --bind /dev/$device dev/$device; done
ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mkdir dev/shm
mount -t tmpfs -o "mode=1777,size=$disk,nosuid,nodev" sandbox dev/shm
mount -t proc -o nosuid,nodev,noexec proc proc
hostname sandbox 2>/dev/null || true
echo 1 > proc/sys/user/max_user_namespaces
for path in sys sysrq-trigger irq bus; do
    [ -e proc/$path ] || continue
    mount --bind proc/$path proc/$path
    mount -o remount,bind,ro,nosuid,nodev,noexec proc/$path
done
pivot_root . .old
cd /
umount -l /.old
rmdir /.old
mount -o remount,bind,ro,nosuid /dev
mount -o remount,bind,ro,nosuid,nodev /
unshare --user --map-user=1000 --map-group=1000 -- "$@"
exit $?
"""

# prctl(PR_SET_NO_NEW_PRIVS) and prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, {length, code}), then the program.
_FILTER = """
import ctypes, os, sys
code = bytes.fromhex(sys.argv[1])
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
prctl = ctypes.CDLL(None, use_errno=True).prctl
program = Program(len(code) // 8, code)
if prctl(38, 1, 0, 0, 0) or (code and prctl(22, 2, ctypes.byref(program), 0, 0)):
    sys.exit(f"no filter of system calls: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[2], sys.argv[2:])
"""


class Unshare:
    name = "unshare"

    def __init__(self, program: str, setpriv: str, python: Path) -> None:
        self._program, self._setpriv, self._python = program, setpriv, python

    @contextmanager
    def command(
        self, inner: Sequence[str], *, limits: SandboxLimits, env: Mapping[str, str], binds: Sequence[Bind]
    ) -> Iterator[tuple[list[str], list[int]]]:
        script = _MOUNTS.format(work=WORK.lstrip("/"), devices=" ".join(_DEVICES))
        namespaces = ["--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup"]
        outer = [self._setpriv, "--pdeathsig", "KILL", "--", self._program, *namespaces, "--fork", "--kill-child", "--"]
        steps = [_free_folder(binds), str(limits.disk_bytes), *_steps(binds), "--"]
        filtered = [str(self._python), "-I", "-S", "-c", _FILTER, (seccomp.program() or b"").hex()]
        variables = [f"{name}={value}" for name, value in env.items()]
        yield [*outer, "/bin/sh", "-c", script, "sandbox", *steps, "env", "-i", *variables, *filtered, *inner], []


def _free_folder(binds: Sequence[Bind]) -> str:
    """A folder of the host to build the new root over, which hides it: none that has something to show below it."""
    for folder in ("/tmp", "/media", "/srv", "/var/tmp", "/home"):
        if Path(folder).is_dir() and not any(Path(bind.source).is_relative_to(folder) for bind in binds):
            return folder
    raise SandboxFault("the sandbox finds no folder to build its root in; make /srv")


def _steps(binds: Sequence[Bind]) -> list[str]:
    """What the script is to show inside, as its arguments."""
    steps = ["bind", "/usr", "/usr"]
    for folder in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", folder)
        if path.is_symlink():
            steps += ["link", os.readlink(path), str(path)]
        elif path.is_dir():
            steps += ["bind", str(path), str(path)]
    for shown in (*(Bind(path, path) for path in ETC if Path(path).exists()), *binds):
        steps += ["bind", shown.source, shown.target]
    for path_in_etc, content in (("/etc/passwd", USERS), ("/etc/group", GROUPS), ("/etc/hosts", HOSTS)):
        steps += ["file", path_in_etc, content.decode()]
    return steps
