"""The distributional rules with faster loops on the CPU, numba's or a compiler's.

Torch makes the same of a dozen small operations, or of [B, N, M] intermediates. Each rule here says what its plain one says
(tests/test_distributional_losses.py, tests/test_tapes.py); `plain` keeps that one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.c51_dqn import CategoricalRule
from rl_training.algorithms.qr_dqn import QuantileRule
from rl_training.algorithms.rules import Rule, TDLoss
from rl_training.types import Array


@cache
def _kernels() -> Any:
    """Imported when the first one is needed, so that nothing else pays for loading numba."""
    from rl_training.speed import kernels

    return kernels


class NumbaCategoricalRule(CategoricalRule):
    def __init__(self, plain: CategoricalRule) -> None:
        super().__init__(num_atoms=plain.num_atoms, v_min=plain.v_min, v_max=plain.v_max, value_rescaling=plain.value_rescaling)
        self.plain = plain

    def project(self, probabilities: Tensor, atoms: Tensor) -> Tensor:
        rows = _rows(probabilities, probabilities.dtype)
        projected = np.empty_like(rows)
        _kernels().project_kernel(rows, _rows(atoms, probabilities.dtype), self.v_min, self.v_max, projected)
        return torch.from_numpy(projected).view(probabilities.shape)


class ScatteredCategoricalRule(CategoricalRule):
    """For a compiled step on the CPU: N additions by index, where the plain rule's N² terms take a compiled loop several times as long."""

    def __init__(self, plain: CategoricalRule) -> None:
        super().__init__(num_atoms=plain.num_atoms, v_min=plain.v_min, v_max=plain.v_max, value_rescaling=plain.value_rescaling)

    def project(self, probabilities: Tensor, atoms: Tensor) -> Tensor:
        last = self.num_atoms - 1
        b = ((atoms - self.v_min) * (last / (self.v_max - self.v_min))).clamp_(0, last)
        lower = b.floor()
        above = (b - lower).mul_(probabilities)
        index = lower.long()
        projected = torch.zeros_like(probabilities).scatter_add_(-1, index, probabilities - above)
        return projected.scatter_add_(-1, index.add_(1).clamp_(max=last), above)


class NumbaQuantileRule(QuantileRule):
    """Loss, its gradient and the mean absolute error come out of one pass, which is kept until the next batch asks."""

    def __init__(self, plain: QuantileRule) -> None:
        super().__init__(kappa=plain.kappa, value_rescaling=plain.value_rescaling)
        self.plain = plain
        nothing = torch.empty(0)
        self._of: tuple[Tensor, Tensor, Tensor | None] = (nothing, nothing, None)
        self._made = (nothing, nothing, nothing)

    def _pass(self, chosen: Tensor, target: Tensor, taus: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Loss [...], gradient [..., N] and mean absolute error [...]."""
        of = self._of
        if target is not of[1] or taus is not of[2] or chosen.data_ptr() != of[0].data_ptr():
            # kept alive here, so that no other tensor can come to lie where they lie
            self._of = (chosen.detach(), target, taus)
            self._made = quantile_huber_pass(chosen, self.levels(chosen, taus), target, self.kappa)
        return self._made

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> Tensor:
        loss, gradient, _ = self._pass(chosen, target, taus)
        if not chosen.requires_grad:
            return loss
        with_graph: Tensor = _WithGradient.apply(chosen, loss, gradient)  # type: ignore[no-untyped-call]  # torch's
        return with_graph

    def gradient(self, chosen: Tensor, target: Tensor, taus: Tensor | None) -> Tensor:
        return self._pass(chosen, target, taus)[1]

    def td_error(self, td: TDLoss) -> Tensor:
        return self._pass(td.chosen, td.target, td.taus)[2]


class _WithGradient(torch.autograd.Function):
    """A loss [...] whose gradient by `chosen` [..., N] is known already."""

    @staticmethod
    def forward(ctx: Any, chosen: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].unsqueeze(-1), None, None


def quantile_huber_pass(theta: Tensor, tau: Tensor, target: Tensor, kappa: float) -> tuple[Tensor, Tensor, Tensor]:
    """`quantile_huber_loss` [...], ∂L/∂theta_i = −mean_j |τ_i − 1{u_ij < 0}| · clip(u_ij/κ, −1, 1) [..., N], and mean_ij |u_ij| [...]."""
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


def numba_rule(rule: Rule) -> Rule:
    """The rule's form with numba's loops, where it has one: only of what is exactly ours."""
    if type(rule) is CategoricalRule:
        return NumbaCategoricalRule(rule)
    if type(rule) is QuantileRule:
        return NumbaQuantileRule(rule)
    return rule


def traced_rule(rule: Rule) -> Rule:
    """The rule's form for a compiler, which can take nothing but torch's operations."""
    plain = plain_rule(rule)
    return ScatteredCategoricalRule(plain) if type(plain) is CategoricalRule else plain


def plain_rule(rule: Rule) -> Rule:
    return rule.plain if isinstance(rule, (NumbaCategoricalRule, NumbaQuantileRule)) else rule
