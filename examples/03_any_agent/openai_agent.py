"""An agent as people write it, on the OpenAI SDK. Of agentrl it knows nothing; its environment says where to ask."""

import json
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Multiply two whole numbers.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def calculate(expression: str) -> str:
    left, _, right = expression.partition("*")
    return str(int(left) * int(right))


def main(question: str) -> None:
    client = OpenAI()  # OPENAI_BASE_URL, OPENAI_API_KEY
    messages = [{"role": "user", "content": question}]
    for _ in range(4):
        choice = client.chat.completions.create(model="policy", messages=messages, tools=[TOOL]).choices[0]
        messages.append(choice.message)
        if not choice.message.tool_calls:
            print(choice.message.content)
            return
        for call in choice.message.tool_calls:
            result = calculate(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main(sys.argv[1])
