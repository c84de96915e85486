"""The most memory that this process held since it last asked: of the device where there is one, else of the host."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset() -> None:
    """Begin a new measurement. Where the system cannot (no /proc), the peak stays that of the process's life."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        RESET.write_text("5")  # proc(5): resets the resident set's high-water mark
    except OSError:
        return


def read() -> int:
    """Bytes: allocated by torch on the GPU, or resident on the host."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(line.split()[1]) * 1024
