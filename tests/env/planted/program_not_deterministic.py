import time

import agentrl


class Planted(agentrl.Program):
    """It tells the policy the time."""

    def run(self, task, policy):
        answer = policy.chat([agentrl.user(f"It is {time.time()}. What time is it?")])  # finds: not-deterministic
        return float(answer.text == "noon")
