"""The process of one vLLM server: `python -m agentrl.engine.vllm_server --listen-fd N --lifeline-fd M <vLLM's flags>`.

A stock vLLM server (`vllm.entrypoints.openai.api_server`) but for three things that its command line cannot give:

* it serves on a socket that its parent has bound already, so no other process can take the port in between;
* it and everything it started are killed as soon as its parent is gone, however the parent went;
* on CPUs it is ready in less than half the time (`vllm_children`).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence

from agentrl.engine.launch import cpu_only
from agentrl.engine.vllm_children import fork_children


def die_with_parent_process(lifeline_fd: int) -> None:
    """Kills the whole process group when the last writer of the pipe `lifeline_fd` is gone: a killed parent, too."""

    def watch() -> None:
        os.read(lifeline_fd, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int, required=True)
    ours, vllm_flags = parser.parse_known_args(argv)
    die_with_parent_process(ours.lifeline_fd)
    serve(socket.socket(fileno=ours.listen_fd), vllm_flags)


def serve(sock: socket.socket, flags: Sequence[str]) -> None:
    """What vLLM's own `main` and `run_server` do, with `sock` instead of a socket of their own."""
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.launchers.launcher import set_ulimit, validate_api_server_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    if cpu_only():
        fork_children(sock)
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(list(flags))
    validate_parsed_serve_args(args)
    validate_api_server_args(args)
    set_ulimit()

    def interrupt_start_up(*_: object) -> None:
        raise KeyboardInterrupt("terminated")

    signal.signal(signal.SIGTERM, interrupt_start_up)  # until uvicorn installs its own
    host, port = sock.getsockname()
    uvloop.run(run_server_worker(f"http://{host}:{port}", sock, args))


if __name__ == "__main__":
    main(sys.argv[1:])
