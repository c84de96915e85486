import agentrl


class Planted(agentrl.Env):
    """It takes for granted that an answer has a word."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say yes.")], {}

    def step(self, action):
        text = action if isinstance(action, str) else action.text
        return [], float(first_word(text) == "yes"), True, False, {}


def first_word(text):
    return text.split()[0]  # finds: raises
