"""The mathematics of value-based updates as pure functions, in the papers' notation and of any rank.

Shapes are the legend's (types.py): a leading `...` is [B] for transitions and [T, B] for sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor


def td_target(rewards: Tensor, discounts: Tensor, bootstrap: Tensor) -> Tensor:
    """y = R + Γ·Q', where Γ already holds γ^k and is 0 after a termination."""
    return torch.addcmul(rewards, discounts, bootstrap)


def take_action(out: Tensor, actions: Tensor) -> Tensor:
    """The outputs of the given actions: [..., A] → [...], or [..., A, N] → [..., N]."""
    if out.ndim == actions.ndim + 1:
        return out.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    index = actions[..., None, None].expand(*actions.shape, 1, out.shape[-1])
    return out.gather(-2, index).squeeze(-2)


def rescale(x: Tensor, eps: float = 1e-3) -> Tensor:
    """h(x) = sign(x)(√(|x|+1) − 1) + εx (arXiv:1805.11593, §3.2); √(a+1) − 1 = a/(√(a+1) + 1), so that small values keep their digits."""
    a = x.abs()
    return torch.sign(x) * (a / (torch.sqrt(a + 1) + 1)) + eps * x


def unrescale(x: Tensor, eps: float = 1e-3) -> Tensor:
    """h⁻¹ (arXiv:1805.11593, proposition A.2), in the form that does not cancel in float32.

    With u = √(|x|' + 1), |h| = u − 1 + ε(u² − 1) is a quadratic in u − 1 =: v:  ε v² + (1 + 2ε) v = |y|, so
    v = 2|y| / ((1 + 2ε) + √((1 + 2ε)² + 4ε|y|))   and   |x| = u² − 1 = v(v + 2): sums of positive terms only.
    """
    y = x.abs()
    b = 1 + 2 * eps
    v = 2 * y / (b + torch.sqrt(b * b + 4 * eps * y))
    return torch.sign(x) * v * (v + 2)
