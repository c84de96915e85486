"""On-policy distillation: a teacher says of every token that the policy sampled how likely it would have said it.

    A_t = c * (teacher_t - policy_t)                  logprobs of the token, under the policy that sampled it

Its policy gradient is that of -c * KL(policy || teacher) at each token's own state; nothing is carried over to earlier
ones. Sources: Agarwal et al., "On-Policy Distillation of Language Models", arXiv:2306.13649, with the reverse
divergence; as an advantage of one sample: Lu et al., "On-Policy Distillation", Thinking Machines Lab, 2025.
"""

from __future__ import annotations

from agentrl_trainers.algorithms.advantages.gae import Vector


def distillation(teacher_A: Vector, behaviour_A: Vector, coefficient: float) -> Vector:
    """Advantages `[A]` of the trained tokens."""
    return coefficient * (teacher_A - behaviour_A)
