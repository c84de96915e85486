"""Nothing is wrong here: an agent program that calls the policy with an SDK."""

import openai

import agentrl
from agentrl.env.policy import Policy


class Planted(agentrl.Program):
    """Asks for the task's seed; reward 1 for it."""

    def run(self, task: agentrl.Task, policy: Policy) -> str:
        with openai.OpenAI(base_url=policy.base_url, api_key=policy.api_key) as client:
            asked = [{"role": "user", "content": f"Say {task.seed}."}]
            answer = client.chat.completions.create(model=policy.model, messages=asked)
            return answer.choices[0].message.content or ""

    def grade(self, task: agentrl.Task, result: str) -> float:
        return float(result.strip() == str(task.seed))

    @classmethod
    def reference(cls, messages: list[agentrl.Message]) -> agentrl.Message:
        return agentrl.assistant(messages[-1].text.removeprefix("Say ").removesuffix("."))
