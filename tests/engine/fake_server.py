"""A stand-in for a vLLM server process, started with the same flags. What it does is in AGENTRL_FAKE.

serve: healthy at once. sick: never healthy. die: says why and exits. stubborn: ignores SIGTERM, and so does its child.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

from agentrl.engine.vllm_server import die_with_parent_process

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--lifeline-fd", type=int)
    args, _ = parser.parse_known_args()
    what = os.environ["AGENTRL_FAKE"]
    if what == "die":
        print("cannot find the model's weights", flush=True)
        sys.exit(3)
    die_with_parent_process(args.lifeline_fd)
    if what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", CHILD])
    if what == "sick":
        Health.status = 503
    server = HTTPServer(("127.0.0.1", 0), Health, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=args.listen_fd)
    print(f"pid {os.getpid()} serves", flush=True)
    server.serve_forever()
    time.sleep(600)


if __name__ == "__main__":
    main()
