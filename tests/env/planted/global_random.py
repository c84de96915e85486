import random

import agentrl


class Planted(agentrl.ToolEnv):
    """It seeds the generator that the whole process shares."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        random.seed(seed)  # finds: global-random
        self.number = random.randrange(10**9)
        return [agentrl.user(f"Say {self.number}.")], {}

    def score(self, message):
        return float(message.text == str(self.number))
