import itertools

import agentrl


class Planted(agentrl.ToolEnv):
    """It looks for a task that there is not."""

    @classmethod
    def tasks(cls, split, seed):
        yield next(agentrl.Task(id=str(number)) for number in itertools.count() if number < 0)  # finds: hang

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
