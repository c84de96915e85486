import json

import agentrl


class Planted(agentrl.Program):
    """It takes for granted that the policy answers in JSON."""

    async def run(self, task, policy):
        answer = await policy.chat([agentrl.user("Answer in JSON.")])
        return json.loads(answer.text)  # finds: raises
