import agentrl


class Planted(agentrl.Env):
    """It writes the turn into a message that it has handed out."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        self.first = agentrl.user("This is turn 0.")
        return [self.first], {}

    def step(self, action):  # finds: message-changed
        self.turn += 1
        self.first["content"] = f"This is turn {self.turn}."
        over = self.turn == 3
        return [] if over else [agentrl.user("Go on.")], 0.0, over, False, {}
