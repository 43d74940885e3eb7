"""What stands between the products of layers with layer norm and ReLU, compiled with numba for the CPU: one loop over the rows each way.

As tensor operations each is a pass over [B, H] of its own, and in an update its call costs as much again. Imported when the first one is
needed, so that nothing else pays for loading numba.
"""

from __future__ import annotations

import numba
import numpy as np

from rl_training.speed.kernels import REORDER
from rl_training.types import Array


@numba.njit(cache=True, fastmath=REORDER)
def normalize_relu(x: Array, bias: Array, gain: Array, shift: Array, eps: float, scale: Array, out: Array) -> None:
    """out = ReLU(gain · x̂ + shift), x̂ = scale · (y − mean y), scale = 1/√(var y + ε), y = x + bias; x̂ takes the place of x.

    x, out: [B, H]; bias, gain, shift: [H]; scale: [B].
    """
    rows, n = x.shape
    zero = x.dtype.type(0)
    for r in range(rows):
        row, made = x[r], out[r]
        total = zero
        for j in range(n):
            y = row[j] + bias[j]
            row[j] = y
            total += y
        mean = total / x.dtype.type(n)
        squares = zero
        for j in range(n):
            y = row[j] - mean
            row[j] = y
            squares += y * y
        s = x.dtype.type(1 / np.sqrt(squares / n + eps))
        scale[r] = s
        for j in range(n):
            h = row[j] * s
            row[j] = h
            y = h * gain[j] + shift[j]
            made[j] = zero if y < zero else y  # NaN stays NaN


@numba.njit(cache=True, fastmath=REORDER)
def normalize_relu_backward(
    grad: Array, out: Array, normed: Array, scale: Array, gain: Array, of_bias: Array, of_gain: Array, of_shift: Array
) -> None:
    """∂L/∂out becomes ∂L/∂x in its place, and `of_…` are filled with the gradients of bias, gain and shift; the rest is as above.

    With g = ∂L/∂out where out > 0, else 0, and h = gain · g:  ∂L/∂x = scale · (h − mean h − x̂ · mean(h x̂)),  ∂L/∂bias = Σ_B ∂L/∂x,
    ∂L/∂gain = Σ_B g x̂,  ∂L/∂shift = Σ_B g.
    """
    rows, n = grad.shape
    zero, size = grad.dtype.type(0), grad.dtype.type(n)
    for j in range(n):
        of_bias[j] = of_gain[j] = of_shift[j] = zero
    for r in range(rows):
        g, made, x = grad[r], out[r], normed[r]
        mean, slope, s = zero, zero, scale[r]
        for j in range(n):
            v = zero if made[j] <= zero else g[j]
            of_shift[j] += v
            of_gain[j] += v * x[j]
            h = v * gain[j]
            g[j] = h
            mean += h
            slope += h * x[j]
        mean /= size
        slope /= size
        for j in range(n):
            v = s * (g[j] - mean - x[j] * slope)
            g[j] = v
            of_bias[j] += v


@numba.njit(cache=True, fastmath=REORDER)
def returns_gradient(q: Array, bias: Array, actions: Array, returns: Array, chosen: Array, grad: Array, of_bias: Array) -> None:
    """With Q = q + bias and L = mean_B ½(R − Q(s, a))² fills `chosen` = Q(s, a) [B], `grad` = ∂L/∂Q [B, A], `of_bias` = Σ_B ∂L/∂Q [A]."""
    rows, n = q.shape
    zero = q.dtype.type(0)
    for j in range(n):
        of_bias[j] = zero
    for r in range(rows):
        a = actions[r]
        if not 0 <= a < n:  # a rollout may come from a checkpoint, and nothing else here looks where it writes
            raise IndexError("an action that the network does not have")
        value = q[r, a] + bias[a]
        g = (value - returns[r]) / q.dtype.type(rows)
        chosen[r] = value
        for j in range(n):
            grad[r, j] = zero
        grad[r, a] = g
        of_bias[a] += g
