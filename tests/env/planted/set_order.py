import agentrl


class Planted(agentrl.ToolEnv):
    """Which word comes first depends on how this process hashes strings."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        words = list({"red", "green", "blue", "black", "white", "brown", "pink", "grey"} | set())
        words = list(set(words))  # finds: not-deterministic-across-processes
        return [agentrl.user(f"Say {' '.join(words)}.")], {}

    def score(self, message):
        return 0.0
