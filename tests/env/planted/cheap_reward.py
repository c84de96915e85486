import agentrl


class Planted(agentrl.ToolEnv):
    """Whatever is short is right."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("What is 6*7?")], {}

    def score(self, message):  # finds: reference-not-best
        return float(len(message.text) < 5)

    def reference(self, messages):
        return agentrl.assistant("42")
