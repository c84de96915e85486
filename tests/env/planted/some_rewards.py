import agentrl


class Planted(agentrl.Env):
    """Steps that earn nothing have no reward, and with them the episode."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turns = 0
        return [agentrl.user("Say something twice.")], {}

    def step(self, action):  # finds: reward-partly-missing
        self.turns += 1
        over = self.turns == 2
        return [] if over else [agentrl.user("Again.")], 1.0 if over else None, over, False, {}
