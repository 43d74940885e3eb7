"""Distributional TD learning as pure functions of any rank, in the papers' notation.

Shapes are the legend's (types.py): a leading `...` is [B] for transitions and [T, B] for sequences; N atoms or predicted quantiles,
M target quantiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.types import Array


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """τ̂_i = (2i − 1)/(2N), i = 1…N: the levels whose quantiles minimise W₁ to the distribution (arXiv:1710.10044, lemma 2). [N]"""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count


def project(probabilities: Tensor, atoms: Tensor, v_min: float, v_max: float) -> Tensor:
    """The distribution on N equidistant atoms of [v_min, v_max] nearest to one on moved atoms (arXiv:1707.06887, eq. 7).

    Each moved atom shares its mass between its two neighbours on the support, in proportion to nearness; mass beyond an end goes to
    that end. Mass is kept, and so is the mean wherever nothing is clipped.

    probabilities: [..., N], the mass of each moved atom; atoms: [..., N], where it moved to. Returns [..., N].
    """
    if _on_cpu(probabilities):
        rows = _rows(probabilities, probabilities.dtype)
        projected = np.empty_like(rows)
        _kernels().project_kernel(rows, _rows(atoms, probabilities.dtype), v_min, v_max, projected)
        return torch.from_numpy(projected).view(probabilities.shape)
    return (_project_densely if probabilities.is_cuda else _project)(probabilities, atoms, v_min, v_max)


def _project_densely(probabilities: Tensor, atoms: Tensor, v_min: float, v_max: float) -> Tensor:
    """The same as a sum over all pairs, m_i = Σ_j p_j · max(0, 1 − |b_j − i|): N² terms that a GPU does at once and always in the same
    order, where adding with atomics gives other bits each time."""
    last = probabilities.shape[-1] - 1
    b = ((atoms - v_min) * (last / (v_max - v_min))).clamp_(0, last)
    support = torch.arange(last + 1, device=b.device, dtype=b.dtype)
    nearness = (1 - (b.unsqueeze(-2) - support.unsqueeze(-1)).abs_()).clamp_(min=0)  # [..., i, j]
    return (nearness * probabilities.unsqueeze(-2)).sum(-1)


def _project(probabilities: Tensor, atoms: Tensor, v_min: float, v_max: float) -> Tensor:
    """The same with torch alone."""
    last = probabilities.shape[-1] - 1
    b = ((atoms - v_min) * (last / (v_max - v_min))).clamp_(0, last)
    lower = b.floor()
    above = (b - lower).mul_(probabilities)
    index = lower.long()
    projected = torch.zeros_like(probabilities).scatter_add_(-1, index, probabilities - above)
    return projected.scatter_add_(-1, index.add_(1).clamp_(max=last), above)


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


class QuantileLoss(NamedTuple):
    """The loss (with gradient) and the mean absolute pairwise TD error mean_ij |u_ij|, both [...]; and ∂loss/∂theta, [..., N]."""

    loss: Tensor
    mean_abs_error: Tensor
    gradient: Tensor


def quantile_huber_loss(theta: Tensor, tau: Tensor, target: Tensor, kappa: float = 1.0) -> QuantileLoss:
    """Quantile Huber loss of QR-DQN (arXiv:1710.10044, eq. 10) and, with sampled τ, of IQN (arXiv:1806.06923, eq. 3).

    L = Σ_i mean_j |τ_i − 1{u_ij < 0}| · H_κ(u_ij) / κ,   u_ij = target_j − theta_i;   κ = 0: H_κ(u)/κ becomes |u|

    theta: [..., N] predicted quantiles; tau: [N] or [..., N] their levels; target: [..., M], no gradient.

    The gradient, ∂L/∂theta_i = −mean_j |τ_i − 1{u_ij < 0}| · clip(u_ij/κ, −1, 1), comes out of the same pass as the loss.
    """
    if not theta.requires_grad:
        loss, gradient, error = _loss_and_gradient(theta, tau, target, kappa)
    else:
        loss, error, gradient = _QuantileHuber.apply(theta, tau.detach(), target.detach(), kappa)  # type: ignore[no-untyped-call]  # torch's
    return QuantileLoss(loss, error, gradient)


class _QuantileHuber(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, tau: Tensor, target: Tensor, kappa: float) -> tuple[Tensor, Tensor, Tensor]:
        loss, gradient, error = _loss_and_gradient(theta, tau, target, kappa)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(error, gradient)
        return loss, error, gradient

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].unsqueeze(-1), None, None, None


def _loss_and_gradient(theta: Tensor, tau: Tensor, target: Tensor, kappa: float) -> tuple[Tensor, Tensor, Tensor]:
    return (_compiled if _on_cpu(theta) else _pairwise)(theta, tau, target, kappa)


def _pairwise(theta: Tensor, tau: Tensor, target: Tensor, kappa: float) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient and mean |u| with torch alone: on an accelerator, and inside a compiled step, where it becomes one kernel."""
    u = target.unsqueeze(-2) - theta.unsqueeze(-1)  # [..., N, M]
    weight = torch.where(u < 0, 1 - tau.unsqueeze(-1), tau.unsqueeze(-1))
    size = u.abs()
    slope = (u / kappa).clamp_(-1, 1) if kappa > 0 else u.sign()
    height = size - (0.5 * kappa) * slope.abs()  # H_κ(u)/κ = |slope| · (|u| − κ|slope|/2)
    loss = (weight * slope.abs() * height).mean(-1).sum(-1)
    return loss, -(weight * slope).mean(-1), size.mean((-2, -1))


def _compiled(theta: Tensor, tau: Tensor, target: Tensor, kappa: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same by the numba kernel, which leaves no intermediate in memory."""
    dtype, shape = theta.dtype, theta.shape
    x = _rows(theta, dtype)
    levels = _rows(tau if tau.numel() == shape[-1] else tau.expand(shape), dtype)
    loss, error, gradient = np.empty(len(x), x.dtype), np.empty(len(x), x.dtype), np.empty_like(x)
    _kernels().quantile_huber_kernel(x, levels, _rows(target, dtype), x.dtype.type(kappa), loss, gradient, error)
    out = torch.from_numpy(loss), torch.from_numpy(gradient), torch.from_numpy(error)
    return out if theta.ndim == 2 else (out[0].view(shape[:-1]), out[1].view(shape), out[2].view(shape[:-1]))


def _rows(x: Tensor, dtype: torch.dtype) -> Array:
    """[..., K] as a contiguous NumPy array [R, K]."""
    x = x.detach()
    if x.ndim != 2:
        x = x.reshape(-1, x.shape[-1])
    if x.dtype != dtype:
        x = x.to(dtype)
    rows: Array = x.contiguous().numpy()
    return rows


_torch_only = False


@contextmanager
def torch_only() -> Iterator[None]:
    """Inside, the losses are made of torch's operations alone, on the CPU too: what a compiler traces, it can take nothing else."""
    global _torch_only
    before, _torch_only = _torch_only, True
    try:
        yield
    finally:
        _torch_only = before


def _on_cpu(x: Tensor) -> bool:
    """Whether numba's loops can be used: not on an accelerator, and not in a compiled step, which makes its own."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not _torch_only and not torch.compiler.is_compiling()


@cache
def _kernels() -> Any:
    from rl_training.algorithms import kernels

    return kernels
