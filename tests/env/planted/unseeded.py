import random

import agentrl


class Planted(agentrl.ToolEnv):
    """Its question is drawn from a generator of its own that nobody seeds."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = random.Random().randrange(10**9)  # finds: not-deterministic
        return [agentrl.user(f"Say {self.number}.")], {}

    def score(self, message):
        return float(message.text == str(self.number))
