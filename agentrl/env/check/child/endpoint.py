"""A scripted policy behind OpenAI's chat completions, for agent programs that call it with an SDK."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentrl.env.check.child.leftovers import OWN_THREADS
from agentrl.messages import Message

Ask = Callable[[list[Message], list[Mapping[str, Any]]], Message]
MODEL = "scripted"


class Endpoint:
    """Loopback only, for one episode."""

    def __init__(self, ask: Ask) -> None:
        handler = type("Handler", (_Handler,), {"ask": staticmethod(ask)})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name=f"{OWN_THREADS}-endpoint")
        self._thread.daemon = True
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)


class _Handler(BaseHTTPRequestHandler):
    ask: Ask
    timeout = 30

    def setup(self) -> None:
        threading.current_thread().name = f"{OWN_THREADS}-request"
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        """Nothing: standard error is the environment's."""

    def do_GET(self) -> None:
        if self.path.rstrip("/").endswith("/models"):
            self._send({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            self._refuse(404)

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            messages = [Message(message) for message in body["messages"]]
        except (ValueError, KeyError, TypeError):
            self._refuse(400)
            return
        if not self.path.endswith("/chat/completions"):
            self._refuse(404)
            return
        reply = type(self).ask(messages, body.get("tools") or [])
        finish = "tool_calls" if reply.tool_calls else "stop"
        if body.get("stream"):
            self._stream(reply, finish)
        else:
            choice = {"index": 0, "message": dict(reply), "finish_reason": finish}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self._send({**_head("chat.completion"), "choices": [choice], "usage": usage})

    def _stream(self, reply: Message, finish: str) -> None:
        calls = [{**call, "index": index} for index, call in enumerate(reply.tool_calls)]
        delta = {"role": "assistant", "content": reply.get("content"), **({"tool_calls": calls} if calls else {})}
        chunks = [
            {"index": 0, "delta": delta, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": finish},
        ]
        lines = [json.dumps({**_head("chat.completion.chunk"), "choices": [chunk]}) for chunk in chunks]
        self._write(200, "text/event-stream", "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]")).encode())

    def _refuse(self, status: int) -> None:
        message = "`agentrl env check` answers POST /v1/chat/completions and GET /v1/models only"
        self._write(status, "application/json", json.dumps({"error": {"message": message}}).encode())

    def _send(self, body: Mapping[str, Any]) -> None:
        self._write(200, "application/json", json.dumps(body).encode())

    def _write(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": MODEL}
