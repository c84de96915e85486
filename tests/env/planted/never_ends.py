import agentrl


class Planted(agentrl.Env):
    """It goes on and on."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say something.")], {}

    def step(self, action):  # finds: never-ends
        return [agentrl.user("Go on.")], 0.0, False, False, {}
