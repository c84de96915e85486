"""Stands in for a vLLM server: calls the tool once, then says what the tool said. Prints its URL."""

import threading

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.scripted import ScriptedEngine
from agentrl.gateway.render import Renderer

RENDERER = Renderer.load(resolve_model(EMBEDDED))
CALL = '<tool_call>\n{"name":"calculate","arguments":{"expression":"12*34"}}\n</tool_call><|im_end|>'


def play(prompt_ids: list[int], sampling: object, version: int) -> list[int]:
    """The script: what is sampled after a prompt."""
    turns = RENDERER.spelled(prompt_ids).split("<|im_start|>")
    asked = turns[-2]  # the last is the beginning of the answer
    if not asked.startswith("tool\n"):
        return RENDERER.raw(CALL, False)
    return RENDERER.raw(asked.removeprefix("tool\n").partition("<|im_end|>")[0] + "<|im_end|>", False)


if __name__ == "__main__":
    with ScriptedEngine(play) as engine:
        print(engine.url, flush=True)
        threading.Event().wait()
