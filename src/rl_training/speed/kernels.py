"""The distributional losses' inner loops, compiled with numba for the CPU.

As tensor operations they are several [B, N, M] intermediates (quantiles) or a dozen small operations (projection), each of which costs
more than its arithmetic. Imported when the first one is needed, so that nothing else pays for loading numba.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from rl_training.types import Array

# Reordering of sums is what lets the compiler use vector instructions. Not `nnan`: a diverged network must show as NaN.
REORDER = {"reassoc", "contract", "nsz", "arcp"}


@numba.njit(cache=True, fastmath=REORDER)
def quantile_huber_kernel(theta: Array, tau: Array, target: Array, kappa: Any, loss: Array, gradient: Array, mean_abs: Array) -> None:
    """Fills `loss` [R], `gradient` = ∂loss/∂theta [R, N] and `mean_abs` = mean_ij |u_ij| [R]; see `quantile_huber_loss`.

    theta: [R, N]; tau: [R, N] or [1, N]; target: [R, M]; `kappa` a scalar of their type.
    """
    rows, n = theta.shape
    m = target.shape[1]
    half, one, zero = theta.dtype.type(0.5), theta.dtype.type(1), theta.dtype.type(0)
    for r in range(rows):
        y = target[r]
        tau_row = tau[r % len(tau)]
        row_loss, row_abs = 0.0, 0.0  # float64: N·M terms
        for i in range(n):
            x, above = theta[r, i], tau_row[i]
            below = above - one  # minus the weight of u < 0, so that weight · |slope| has the sign of u
            g, h, s = zero, zero, zero
            if kappa > zero:
                for j in range(m):
                    u = y[j] - x
                    a = abs(u)
                    c = kappa if a > kappa else a
                    w = (above if u > zero else below) * c
                    g += w
                    h += abs(w) * (a - half * c)
                    s += a
            else:
                for j in range(m):
                    u = y[j] - x
                    a = abs(u)
                    w = above if u > zero else below
                    g += w if a > zero else a  # a, not 0: NaN stays NaN
                    h += abs(w) * a
                    s += a
            scale = m * kappa if kappa > zero else np.float64(m)
            gradient[r, i] = -g / scale
            row_loss += h / scale
            row_abs += s
        loss[r] = row_loss
        mean_abs[r] = row_abs / (n * m)


@numba.njit(cache=True)
def project_kernel(probabilities: Array, atoms: Array, v_min: float, v_max: float, projected: Array) -> None:
    """Fills `projected` [R, N]; see `project`. probabilities, atoms: [R, N]."""
    rows, n = probabilities.shape
    scale = (n - 1) / (v_max - v_min)
    for r in range(rows):
        for i in range(n):
            projected[r, i] = 0
        for i in range(n):
            b = (atoms[r, i] - v_min) * scale
            p = probabilities[r, i]
            if not b > 0:
                lower, above = 0, p * b * 0  # 0, and NaN where b is NaN
            elif b >= n - 1:
                lower, above = n - 1, p * 0
            else:
                lower = int(b)
                above = p * (b - lower)
            # p − p(b − l), not p(u − b): keeps the mass when b is an integer, where l and u are the same atom.
            projected[r, lower] += p - above
            if lower < n - 1:
                projected[r, lower + 1] += above
