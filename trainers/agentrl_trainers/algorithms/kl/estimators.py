"""Estimators of KL(policy || reference) from one sampled token.

    d_t = policy_t - reference_t      k1 = d      k2 = d^2 / 2      k3 = exp(-d) - 1 + d

k1 is unbiased and may be negative, k3 is unbiased and never negative, k2 is biased with low variance. As a loss over
the policy's own samples, k2 has the gradient of this divergence, k3 that of the other way round, KL(reference ||
policy); k1's is 0 on average, so it goes into the reward alone.
Source: Schulman, "Approximating KL divergence", 2020.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def k1(logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """`[N]` nats, of `[N]` logprobs of the same tokens under the policy (with gradient) and under the reference."""
    return logprobs_N - reference_N


def k2(logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """`[N]` nats; see `k1`."""
    return 0.5 * (logprobs_N - reference_N).square()


def k3(logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """`[N]` nats; see `k1`."""
    back_N = reference_N - logprobs_N
    return torch.expm1(back_N) - back_N


ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
