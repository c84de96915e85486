"""A filter of system calls that a sandboxed program has no honest use for: BPF as the kernel loads it.

They reach past the namespaces (keyrings, vsock, perf events), hold memory that no limit sees (memfd, System V
segments), or open large parts of the kernel (io_uring, bpf, new namespaces). Numbers: the kernel's own tables.
"""

from __future__ import annotations

import errno
import platform
import struct

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_KILL_PROCESS = 0x80000000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments are 8 bytes, low half first

_X32 = 0x40000000
_CLONE_NEW = 0x7E020080  # every CLONE_NEW* flag
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_SOCKETS = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: namespaced, all of them

# Since Linux 5.0 new calls have the same number everywhere.
_SAME = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
}  # fmt: skip
_X86_64 = {
    "shmget": 29, "msgget": 68, "ptrace": 101, "syslog": 103, "pivot_root": 155, "chroot": 161, "acct": 163,
    "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170,
    "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
    "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "memfd_create": 319, "kexec_file_load": 320,
    "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89, "unshare": 97,
    "kexec_load": 104, "init_module": 105, "delete_module": 106, "syslog": 116, "ptrace": 117, "reboot": 142,
    "sethostname": 161, "setdomainname": 162, "msgget": 186, "shmget": 194, "add_key": 217, "request_key": 218,
    "keyctl": 219, "swapon": 224, "swapoff": 225, "perf_event_open": 241, "fanotify_init": 262,
    "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
    "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
    "kexec_file_load": 294,
}  # fmt: skip
_CLONE3 = 435

# machine: (AUDIT_ARCH, refused calls, clone, socket, ioctl)
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64, 56, 41, 16),
    "aarch64": (0xC00000B7, _AARCH64, 220, 198, 29),
}


def program(machine: str | None = None) -> bytes | None:
    """The filter as an array of `struct sock_filter`. None for a processor whose numbers are not here."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    arch, refused, clone, socket, ioctl = known
    code = [
        _op(_LOAD, _ARCH),
        _op(_JUMP_EQUAL, arch, 1, 0),
        _op(_RETURN, _KILL_PROCESS),
        _op(_LOAD, _NUMBER),
        _op(_JUMP_AT_LEAST, _X32, 0, 1),
        _op(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for number in sorted((_SAME | refused).values()):
        code += _refuse(number, errno.EPERM)
    code += _refuse(_CLONE3, errno.ENOSYS)  # its flags are in memory, which a filter cannot see; libc takes clone then
    code += _when(clone, [_op(_JUMP_ANY_BIT, _CLONE_NEW, 0, 1), _op(_RETURN, _ERRNO | errno.EPERM)])
    # The bits that the command is made of are the low half of the second argument.
    for command in _TERMINAL_INJECTION:
        code += _when(ioctl, _refuse(command, errno.EPERM), argument=1)
    allowed = [_op(_JUMP_EQUAL, family, len(_SOCKETS) - place, 0) for place, family in enumerate(_SOCKETS)]
    code += _when(socket, [*allowed, _op(_RETURN, _ERRNO | errno.EAFNOSUPPORT)])
    code.append(_op(_RETURN, _ALLOW))
    return b"".join(code)


def _refuse(value: int, error: int) -> list[bytes]:
    return [_op(_JUMP_EQUAL, value, 0, 1), _op(_RETURN, _ERRNO | error)]


def _when(number: int, body: list[bytes], argument: int = 0) -> list[bytes]:
    """`body` with an argument of call `number` loaded; the number is loaded again after it."""
    inner = [_op(_LOAD, _ARGUMENT + 8 * argument), *body, _op(_LOAD, _NUMBER)]
    return [_op(_JUMP_EQUAL, number, 0, len(inner)), *inner]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
