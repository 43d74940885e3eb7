"""Munchausen reinforcement learning (arXiv:2007.14430): the agent's own log-policy as a reward, in front of any rule and view."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.backups import Backup, Bootstrap, Seen, take_action
from rl_training.algorithms.rules import unrescale


def soft_policy(q_values: Tensor, tau: float, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """π = softmax(q/τ) over the allowed actions, and τ·log π, both [..., A].

    τ·log π = A − τ·log Σ exp(A/τ) with A = q − max q: nothing is divided by τ that was not subtracted first, so that large values keep
    their digits and a small τ does not overflow. Where an action is not allowed, π is 0 and τ·log π some finite number.
    """
    if mask is None:
        advantage = q_values - q_values.amax(-1, keepdim=True)
        logits = advantage / tau
    else:
        mask = mask | ~mask.any(-1, keepdim=True)  # nothing is allowed after a termination: any finite value will do, since Γ is 0
        advantage = q_values - q_values.masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
        logits = (advantage / tau).masked_fill(~mask, -torch.inf)
    return torch.softmax(logits, -1), advantage - tau * torch.logsumexp(logits, -1, keepdim=True)


class MunchausenBackup(Backup):
    """R + α·[τ log π(a|s)]_{l0}^0 + Γ·Σ_a' π(a'|s')(z(s', a') − τ log π(a'|s')),   π = softmax(q/τ)    (arXiv:2007.14430, eq. 2)

    q are the target network's values, here and there, as in the paper. The bonus is that of the first action of an n-step return. α = 0
    is soft Q-learning, and with τ → 0 DQN. `value_rescaling`: the outputs are in R2D2's h-space; the policy is then that of h⁻¹(q), since
    τ, entropy and bonus are in the reward's units (of a distributional head, h⁻¹ of the mean that it acts by).
    """

    needs_current = True

    def __init__(self, *, alpha: float = 0.9, tau: float = 0.03, clip: float = -1.0, value_rescaling: bool = False) -> None:
        if tau <= 0 or clip > 0:
            raise ValueError(f"tau must be > 0 and clip <= 0, got {tau} and {clip}")
        self.alpha, self.tau, self.clip, self.value_rescaling = alpha, tau, clip, value_rescaling

    def policy(self, seen: Seen, outputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q_values = seen.q_values(outputs)
        return soft_policy(unrescale(q_values) if self.value_rescaling else q_values, self.tau, mask)

    def __call__(self, seen: Seen) -> Bootstrap:
        assert seen.outputs is not None, "asked for by `needs_current`"
        _, log_policy = self.policy(seen, seen.outputs, seen.mask)
        bonus = self.alpha * take_action(log_policy, seen.actions).clamp(min=self.clip, max=0)
        probabilities, next_log_policy = self.policy(seen, seen.next_outputs, seen.next_mask)
        return Bootstrap(seen.next_outputs, probabilities, -next_log_policy, bonus)
