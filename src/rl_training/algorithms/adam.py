"""Adam (arXiv:1412.6980), AdamW (arXiv:1711.05101) and RAdam (arXiv:1908.03265) on one flat parameter tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.types import OptimizerName, State

GPU_PIECES = 32  # as many tensors as one launch of the kernel takes


class Coefficients(NamedTuple):
    """Of one step, θ ← keep·θ − rate·m/(root·√v + floor) with both moments already moved: numbers, or tensors on the device."""

    rate: Any
    root: Any
    floor: Any
    keep: Any


def coefficients(
    kind: OptimizerName, step: Any, learning_rate: Any, betas: tuple[float, float], eps: float, weight_decay: float
) -> Coefficients:
    """The coefficients of step 1, 2, …, in double precision: 1 − 0.999 in float32 keeps four digits only.

    Adam:   m̂/(√v̂ + ε) with m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ).   AdamW: the same, and θ is decayed by lr·λ.
    RAdam:  m̂·r·√(1 − β₂ᵗ)/(√v + ε) with r² = (ρ − 4)(ρ − 2)ρ∞/((ρ∞ − 4)(ρ∞ − 2)ρ), ρ = ρ∞ − 2tβ₂ᵗ/(1 − β₂ᵗ), ρ∞ = 2/(1 − β₂) − 1; the
            momentum m̂ alone while ρ ≤ 5, where the variance of the adaptive rate is not finite.
    """
    beta1, beta2 = betas
    rate, second = learning_rate / (1 - beta1**step), 1 - beta2**step
    if kind != "radam":
        return Coefficients(rate, second**-0.5, eps, 1 - learning_rate * weight_decay if kind == "adamw" else 1.0)
    most = 2 / (1 - beta2) - 1
    rho = most - 2 * step * beta2**step / second
    # abs: below 5 the root is not used, and need not exist
    rectified = rate * (second * abs((rho - 4) * (rho - 2)) * most / ((most - 4) * (most - 2) * rho)) ** 0.5
    if not isinstance(rho, Tensor):
        return Coefficients(rectified, 1.0, eps, 1.0) if rho > 5 else Coefficients(rate, 0.0, 1.0, 1.0)
    # 0 or 1, and sums in place of `where` with numbers: a number on its way to the device has no place in a CUDA graph.
    tame = (rho > 5).double()
    return Coefficients(tame * rectified + (1 - tame) * rate, tame, tame * eps + (1 - tame), 1.0)


def moved(
    parameters: Tensor, grad: Tensor, mean: Tensor, variance: Tensor, by: Coefficients, betas: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters and both moments after one step along `grad`, of torch's operations alone."""
    beta1, beta2 = betas
    mean = beta1 * mean + (1 - beta1) * grad
    variance = beta2 * variance + (1 - beta2) * grad * grad
    return by.keep * parameters - by.rate * mean / (variance.sqrt() * by.root + by.floor), mean, variance


class FlatAdam:
    """The update of `torch.optim.Adam(fused=True)`, one kernel for the whole network, without that class's cost per call; or that of AdamW
    or RAdam. `weight_decay` is as in torch.optim: decoupled in AdamW, added to the gradient in the others.

    At this size that class's Python is a large part of a step; tests/test_optimizers.py holds each equal to torch's.
    """

    def __init__(
        self,
        parameters: Tensor,
        shapes: Sequence[Sequence[int]],
        *,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        kind: OptimizerName = "adam",
        weight_decay: float = 0.0,
    ) -> None:
        """shapes: of the parameters in the flat tensor, in their order."""
        self.parameters, self.eps, self.betas, self.kind, self.weight_decay = parameters, eps, betas, kind, weight_decay
        self.grad = torch.zeros_like(parameters)
        pieces = torch.split(self.grad, [math.prod(shape) for shape in shapes])
        self.grads = [piece.view(tuple(shape)) for piece, shape in zip(pieces, shapes, strict=True)]  # views of `grad`
        self._zeros = parameters.new_zeros(())
        self.mean, self.variance = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self.steps = torch.zeros((), device=parameters.device)
        self._on_cpu = parameters.device.type == "cpu"
        # On a GPU the kernel gives each tensor of its list a block of its own, and works on one alone as long as on many.
        count = 1 if self._on_cpu else max(1, min(GPU_PIECES, parameters.numel() // 256))
        self._pieces = [list(x.chunk(count)) for x in (self.parameters, self.grad, self.mean, self.variance)]
        self._piece_steps = [self.steps] * len(self._pieces[0])

    def coefficients(self, step: Any, learning_rate: Any) -> Coefficients:
        return coefficients(self.kind, step, learning_rate, self.betas, self.eps, self.weight_decay)

    def decayed(self, grad: Tensor, parameters: Tensor) -> Tensor:
        """The gradient with what weight decay adds to it; AdamW's adds nothing."""
        return grad + self.weight_decay * parameters if self.weight_decay and self.kind != "adamw" else grad

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None], learning_rate: float | Tensor, max_grad_norm: float | None) -> None:
        """grads: of the parameters in their order in the flat tensor; None where the loss does not depend on one. `self.grads` itself is
        what was written there."""
        if grads is not self.grads:
            torch._foreach_copy_(self.grads, [self._zeros if g is None else g for g in grads])
        if max_grad_norm is not None:
            self._clip(max_grad_norm)
        self.steps += 1
        if self.kind == "radam":
            self._step_radam(learning_rate)
        else:
            self._step_fused(learning_rate, self.eps)

    def _step_fused(self, learning_rate: float | Tensor, eps: float) -> None:
        fused = torch._fused_adamw_ if self.kind == "adamw" else torch._fused_adam_
        fused(
            self._pieces[0],
            self._pieces[1],
            self._pieces[2],
            self._pieces[3],
            [],
            self._piece_steps,
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )

    def _step_radam(self, learning_rate: float | Tensor) -> None:
        """There is no kernel for it, but a rectified step is Adam's with lr·r and ε/√(1 − β₂ᵗ). On a GPU the count of steps stays on the
        device, where neither can be told from the other, and all is torch's operations."""
        step = int(self.steps) if self._on_cpu else self.steps.double()
        by = self.coefficients(step, learning_rate)
        if self._on_cpu and by.root:
            corrected = math.sqrt(1 - self.betas[1] ** step)
            self._step_fused(by.rate * (1 - self.betas[0] ** step) / corrected, self.eps / corrected)
            return
        grad = self.decayed(self.grad, self.parameters)
        new = moved(self.parameters, grad, self.mean, self.variance, by, self.betas)
        for mine, after in zip((self.parameters, self.mean, self.variance), new, strict=True):
            mine.copy_(after)

    def _clip(self, max_norm: float) -> None:
        """As clip_grad_norm_: scaled by max/(norm + 1e-6) where that is below 1. Only on the CPU is reading the norm free."""
        if self._on_cpu:
            norm = math.sqrt(self.grad.dot(self.grad).item())
            if not norm <= max_norm:  # a NaN goes on into the parameters, where the next logged loss shows it
                self.grad.mul_(min(max_norm / (norm + 1e-6), 1.0))
        else:
            self.grad.mul_((max_norm / (torch.linalg.vector_norm(self.grad) + 1e-6)).clamp_(max=1.0))

    def state_dict(self) -> State:
        return {"mean": self.mean, "variance": self.variance, "steps": self.steps}

    def load_state_dict(self, state: State) -> None:
        for name in ("mean", "variance", "steps"):
            getattr(self, name).copy_(state[name])
