import itertools

import agentrl


class Planted(agentrl.ToolEnv):
    """A tool counts down to a number that it steps over."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Count down.")], {}

    @agentrl.tool
    def count_down(self) -> str:
        """Count down."""
        number = next(number for number in itertools.count(7, -2) if number == 0)  # finds: hang
        return str(number)

    def score(self, message):
        return 0.0
