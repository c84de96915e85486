import agentrl


class Planted(agentrl.Env):
    """It answers in text, not in messages."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return [agentrl.user("Say something.")], {}

    def step(self, action):  # finds: message-form
        return "Well done.", 0.0, True, False, {}
