"""Chat answers, whole and streamed, as a client puts them together."""

from __future__ import annotations

import json
from typing import Any


def whole_choices(data: bytes) -> list[dict[str, Any]]:
    response = json.loads(data)
    return [
        _choice(
            response["id"],
            choice["index"],
            response["prompt_token_ids"],
            choice["token_ids"],
            choice["logprobs"],
            {key: value for key, value in choice["message"].items() if key != "refusal"},
            choice["finish_reason"],
        )
        for choice in response["choices"]
    ]


def streamed_choices(data: bytes) -> list[dict[str, Any]] | str:
    """ "lost" for a stream that did not come to its end."""
    events = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return "lost"
    found: dict[int, dict[str, Any]] = {}
    chunks = [json.loads(event) for event in events[:-1]]
    for chunk in chunks:
        for choice in chunk["choices"]:
            state = found.setdefault(choice["index"], {"ids": [], "logprobs": [], "message": {}, "finish": None})
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                if key in delta:
                    state["message"][key] = state["message"].get(key, "") + delta[key]
            for call in delta.get("tool_calls", ()):
                calls = state["message"].setdefault("tool_calls", [])
                assert call["index"] == len(calls)
                calls.append({key: value for key, value in call.items() if key != "index"})
            state["ids"] += choice.get("token_ids", [])
            state["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
            state["finish"] = choice.get("finish_reason") or state["finish"]
    return [
        _choice(
            chunks[0]["id"],
            index,
            chunks[0]["prompt_token_ids"],
            state["ids"],
            {"content": state["logprobs"]},
            {"role": "assistant", "content": None} | state["message"],
            state["finish"],
        )
        for index, state in sorted(found.items())
    ]


def _choice(
    response_id: str,
    index: int,
    prompt_ids: list[int],
    token_ids: list[int],
    logprobs: dict[str, Any] | None,
    message: dict[str, Any],
    finish_reason: str,
) -> dict[str, Any]:
    return {
        "call_id": f"{response_id}-{index}" if index else response_id,
        "prompt_ids": prompt_ids if index == 0 else None,
        "token_ids": token_ids,
        "logprobs": None if logprobs is None else [entry["logprob"] for entry in logprobs["content"]],
        "message": message,
        "finish_reason": finish_reason,
    }
