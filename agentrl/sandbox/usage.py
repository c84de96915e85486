"""What the processes of a sandbox use, read from the sandbox's own /proc, where nothing else is listed."""

from __future__ import annotations

import os

from msgspec import Struct


class Usage(Struct, frozen=True):
    processes: int  # threads included
    resident_bytes: int  # shared pages counted once a process, so an upper bound
    cpu_s: float  # with the children that were waited for


class ProcessTable:
    """`proc` is a descriptor of the folder."""

    def __init__(self, proc: int) -> None:
        self._proc = proc
        self._page, self._tick = os.sysconf("SC_PAGE_SIZE"), 1 / os.sysconf("SC_CLK_TCK")

    def pids(self) -> list[str]:
        try:
            return [name for name in os.listdir(f"/proc/self/fd/{self._proc}") if name.isdecimal()]
        except OSError:  # the last process is gone, and its /proc with it
            return []

    def usage(self) -> Usage:
        processes = resident = ticks = 0
        for pid in self.pids():
            stat = self._read(f"{pid}/stat")
            if stat is None:
                continue
            fields = stat.rpartition(b")")[2].split()  # the name before it may hold anything; fields from the third on
            ticks += sum(map(int, fields[11:15]))
            processes += int(fields[17])
            resident += int(fields[21]) * self._page
        return Usage(processes, resident, ticks * self._tick)

    def memory_bytes(self) -> int:
        """Anonymous and shared memory, each page once. Slower than `usage` by far."""
        return sum(self._own_share(pid) for pid in self.pids())

    def _own_share(self, pid: str) -> int:
        rollup = self._read(f"{pid}/smaps_rollup")
        if not rollup:
            return 0
        sizes = {name: rest for name, _, rest in (line.partition(b":") for line in rollup.splitlines())}
        names = (b"Pss_Anon", b"Pss_Shmem", b"SwapPss") if b"Pss_Anon" in sizes else (b"Pss",)
        return sum(int(sizes[name].split()[0]) * 1024 for name in names if name in sizes)

    def _read(self, path: str) -> bytes | None:
        try:
            file = os.open(path, os.O_RDONLY, dir_fd=self._proc)
        except OSError:
            return None
        try:
            return os.read(file, 4096)
        except OSError:  # it ended meanwhile
            return None
        finally:
            os.close(file)
