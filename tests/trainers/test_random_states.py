"""Random numbers go on where they were captured, through JSON."""

from __future__ import annotations

import json
import random

import numpy as np
import torch

from agentrl_trainers.deepspeed import random_states


def drawn() -> list[float]:
    """A normal number of Python and NumPy leaves a second one for the next draw: a part of their state."""
    return [float(torch.rand(())), random.gauss(0, 1), float(np.random.normal()), random.random()]


def test_what_is_drawn_after_a_restore_is_what_was_drawn_after_the_capture() -> None:
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    drawn()
    state = json.loads(json.dumps(random_states.capture()))
    expected = [drawn(), drawn()]
    drawn()
    random_states.restore(state)
    assert [drawn(), drawn()] == expected
