"""The mathematics of PPO as pure functions of any rank.

Shapes are the legend's (types.py): `...` is [B] for transitions and [T, B] for sequences. Every function gives one number per step; the
learner averages over the steps that count.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float | Tensor) -> Tensor:
    """PPO's clipped objective, negated (arXiv:1707.06347, eq. 7): −min(ρA, clip(ρ, 1−ε, 1+ε)·A),  ρ = π(a|s)/π_old(a|s).

    At ρ exactly on a bound both are equal and the gradient still flows: it is cut only beyond the clip.
    """
    ratio = torch.exp(log_probs - old_log_probs)
    return -torch.minimum(ratio * advantages, clipped_ratio(ratio, clip) * advantages)


def clipped_ratio(ratio: Tensor, clip: float | Tensor) -> Tensor:
    """clip(ρ, 1−ε, 1+ε)."""
    return ratio.clamp(1 - clip, 1 + clip)  # type: ignore[arg-type]  # two numbers or two tensors


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor | None = None, clip: float | None = None) -> Tensor:
    """(V − R)², or with `clip` max((V − R)², (V_old + clip(V − V_old, ±clip) − R)²): a step away from V_old earns nothing beyond the clip
    (as OpenAI baselines do; arXiv:2006.05990 found no gain in it)."""
    error = values - returns
    if clip is None or old_values is None:
        return error * error
    clipped = old_values + (values - old_values).clamp(-clip, clip) - returns
    return torch.maximum(error * error, clipped * clipped)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(π_old ‖ π) ≈ (ρ − 1) − log ρ of actions drawn from π_old: unbiased and never negative (Schulman 2020, *Approximating KL*)."""
    return torch.expm1(log_ratio) - log_ratio


def normalized(advantages: Tensor, mask: Tensor | None, eps: float = 1e-8) -> Tensor:
    """(A − mean) / (std + eps) over the steps that count; a single step stays as it is."""
    if mask is None:
        if advantages.numel() < 2:
            return advantages
        std, mean = torch.std_mean(advantages)
        return (advantages - mean) / (std + eps)
    count = mask.sum()
    mean = (advantages * mask).sum() / count.clamp(min=1)
    centred = (advantages - mean) * mask
    std = ((centred * centred).sum() / (count - 1).clamp(min=1)).sqrt()
    return torch.where(count < 2, advantages * mask, centred / (std + eps))
