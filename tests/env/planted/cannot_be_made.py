import agentrl


class Planted(agentrl.ToolEnv):
    """Its constructor looks for a file that is not there."""

    def __init__(self):
        with open("/no/such/file") as file:  # finds: cannot-be-made
            self.words = file.read()
