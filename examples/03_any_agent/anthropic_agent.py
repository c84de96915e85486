"""The same agent on the Anthropic SDK, streaming. It knows nothing of agentrl either."""

import sys

from anthropic import Anthropic

TOOL = {
    "name": "calculate",
    "description": "Multiply two whole numbers.",
    "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}


def calculate(expression: str) -> str:
    left, _, right = expression.partition("*")
    return str(int(left) * int(right))


def main(question: str) -> None:
    client = Anthropic()  # ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY
    messages = [{"role": "user", "content": question}]
    for _ in range(4):
        with client.messages.stream(model="policy", max_tokens=64, messages=messages, tools=[TOOL]) as stream:
            answer = stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        if answer.stop_reason != "tool_use":
            print("".join(block.text for block in answer.content if block.type == "text"))
            return
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": calculate(**block.input)}
            for block in answer.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    main(sys.argv[1])
