import uuid

import agentrl


class Planted(agentrl.ToolEnv):
    """Each reading of its tasks gives other ones."""

    @classmethod
    def tasks(cls, split, seed):  # finds: tasks-order
        return (agentrl.Task(id=uuid.uuid4().hex, seed=index) for index in range(100))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
