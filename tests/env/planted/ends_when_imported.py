"""It was meant to be run as a script."""

import os

import agentrl


class Planted(agentrl.ToolEnv):
    """Never made."""


os._exit(0)  # finds: crash
