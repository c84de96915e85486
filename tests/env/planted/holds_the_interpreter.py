import re

import agentrl


class Planted(agentrl.ToolEnv):
    """A regular expression that takes for ever, in C code that no other Python thread can interrupt."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say a's.")], {}

    def score(self, message):
        return float(re.fullmatch(r"(a|a)*b", "a" * 60) is not None)  # finds: hang
