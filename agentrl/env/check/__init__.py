"""`agentrl env check`: plays an environment with scripted policies in a process of its own, and says what is wrong.

`runner` starts `child`, which plays and writes down what it saw (`records`); the checks in `checks/` are pure functions
from that recording to findings.
"""
