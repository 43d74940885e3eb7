"""Distributional TD learning as pure functions of any rank, in the papers' notation.

Shapes are the legend's (types.py): a leading `...` is [B] for transitions and [T, B] for sequences; N atoms or predicted quantiles,
M target quantiles.
"""

from __future__ import annotations

import torch
from torch import Tensor


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """τ̂_i = (2i − 1)/(2N), i = 1…N: the levels whose quantiles minimise W₁ to the distribution (arXiv:1710.10044, lemma 2). [N]"""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count


def project(probabilities: Tensor, atoms: Tensor, v_min: float, v_max: float) -> Tensor:
    """The distribution on N equidistant atoms of [v_min, v_max] nearest to one on moved atoms (arXiv:1707.06887, eq. 7).

    Each moved atom shares its mass between its two neighbours on the support, in proportion to nearness; mass beyond an end goes to
    that end. Mass is kept, and so is the mean wherever nothing is clipped.

    probabilities: [..., N], the mass of each moved atom; atoms: [..., N], where it moved to. Returns [..., N].

    As a sum over all pairs, m_i = Σ_j p_j · max(0, 1 − |b_j − i|) with b in steps of the support: always in the same order, where adding up
    by index gives other bits each time on a GPU.
    """
    last = probabilities.shape[-1] - 1
    b = ((atoms - v_min) * (last / (v_max - v_min))).clamp_(0, last)
    support = torch.arange(last + 1, device=b.device, dtype=b.dtype)
    nearness = (1 - (b.unsqueeze(-2) - support.unsqueeze(-1)).abs_()).clamp_(min=0)  # [..., i, j]
    return (nearness * probabilities.unsqueeze(-2)).sum(-1)


def clipped_share(probabilities: Tensor, atoms: Tensor, v_min: float, v_max: float) -> Tensor:
    """The mass that `project` has to move to an end of the support because its atom left it, [...].

    An atom within 1/1000 of a step of the end counts as inside: r + γ·v_max = v_max holds only up to rounding.
    """
    slack = (v_max - v_min) / (probabilities.shape[-1] - 1) * 1e-3
    outside = (atoms < v_min - slack) | (atoms > v_max + slack)
    return (probabilities * outside).sum(-1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−Σ_i m_i log p_i with p = softmax(logits), [..., N] each → [...]: C51's loss (arXiv:1707.06887, algorithm 1)."""
    flat = logits.reshape(-1, logits.shape[-1])
    return torch.nn.functional.cross_entropy(flat, target.reshape(flat.shape), reduction="none").view(logits.shape[:-1])


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ_i p_i log p_i, [..., N] → [...]."""
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(-1)


def quantile_huber_loss(theta: Tensor, tau: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss of QR-DQN (arXiv:1710.10044, eq. 10), divided by κ as in IQN (arXiv:1806.06923, eq. 3).

    L = Σ_i mean_j |τ_i − 1{u_ij < 0}| · H_κ(u_ij) / κ,   u_ij = target_j − theta_i;   κ = 0: H_κ(u)/κ becomes |u|

    theta: [..., N] predicted quantiles; tau: [N] or [..., N] their levels; target: [..., M], no gradient. Returns [...].
    """
    u = pairwise(theta, target)
    weight = torch.where(u < 0, 1 - tau.unsqueeze(-1), tau.unsqueeze(-1))
    # H_κ(u)/κ = slope·u − κ·slope²/2, whose derivative is the slope. Not |u|: its derivative hides a NaN.
    slope = (u.detach() / max(kappa, torch.finfo(u.dtype).tiny)).clamp_(-1, 1)
    return (weight * (slope * u - (0.5 * kappa) * slope.square())).mean(-1).sum(-1)


def pairwise(theta: Tensor, target: Tensor) -> Tensor:
    """u_ij = target_j − theta_i: [..., N] and [..., M] → [..., N, M]."""
    return target.detach().unsqueeze(-2) - theta.unsqueeze(-1)


def pairwise_td_error(theta: Tensor, target: Tensor) -> Tensor:
    """mean_ij |u_ij|, [...]."""
    return pairwise(theta, target).abs_().mean((-2, -1))
