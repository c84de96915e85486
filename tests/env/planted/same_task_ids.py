import agentrl


class Planted(agentrl.ToolEnv):
    """Two of its tasks have one name, and the held-out split is the training split."""

    @classmethod
    def tasks(cls, split, seed):  # finds: task-ids splits-overlap
        return (agentrl.Task(id=f"t{index % 3}", seed=index) for index in range(4))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user(f"Say {seed}.")], {}

    def score(self, message):
        return 0.0
