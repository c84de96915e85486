import agentrl


class Planted(agentrl.Env):
    """It returns the whole conversation each time."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.messages = [agentrl.system("Be brief."), agentrl.user("Say something.")]
        return list(self.messages), {}

    def step(self, action):  # finds: history-repeated
        said = agentrl.assistant(action) if isinstance(action, str) else action
        self.messages = [*self.messages, said, agentrl.user("Go on.")]
        over = len(self.messages) > 7
        return list(self.messages), 0.0, over, False, {}
