"""An agent as a Python function, on the OpenAI SDK."""

from __future__ import annotations

import json
from typing import Any

import tasks as calculator
from openai import AsyncOpenAI

import agentrl
from agentrl_envs.calculator.env import Calculator
from agentrl_envs.calculator.tasks import evaluate

TOOLS = Calculator().tools


@agentrl.program(tasks=calculator.tasks, grade=calculator.grade)
async def solve(task: agentrl.Task, policy: agentrl.Policy) -> str | None:
    async with AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key) as client:
        messages: list[Any] = [{"role": "user", "content": task.options["question"]}]
        for _ in range(4):
            answer = await client.chat.completions.create(model=policy.model, messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": calculate(call)})
    return None


def calculate(call: Any) -> str:
    try:
        return evaluate(json.loads(call.function.arguments)["expression"])
    except (ValueError, LookupError, TypeError) as error:
        return f"Error: {error}"
