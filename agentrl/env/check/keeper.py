"""`python -m agentrl.env.check.keeper DESCRIPTOR COMMAND…`: stands between the command and the environment's process.

It adopts whatever that process starts, and when that ends, or the command is gone, nothing of it is left. Standard
input is the command's end of a pipe; the exit status and signal are those of the environment's process.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys

from agentrl.env.isolated.kernel import adopt_orphans
from agentrl.env.isolated.tree import end_children

_END_S = 10.0


def main() -> None:
    descriptor = int(sys.argv[1])
    adopt_orphans()
    process = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, pass_fds=(descriptor,), start_new_session=True)
    os.close(descriptor)
    ended = os.pidfd_open(process.pid)
    ready, _, _ = select.select([0, ended], [], [])
    status = process.wait() if ended in ready else -signal.SIGKILL
    end_children(timeout_s=_END_S)
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
