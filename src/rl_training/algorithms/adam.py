"""Adam (arXiv:1412.6980) on one flat parameter tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rl_training.types import State

GPU_PIECES = 32  # as many tensors as one launch of the kernel takes


class FlatAdam:
    """The update of `torch.optim.Adam(fused=True)`, one kernel for the whole network, without that class's cost per call.

    At this size that class's Python is a large part of a step; tests/test_dqn_update.py holds the two equal.
    """

    def __init__(
        self, parameters: Tensor, shapes: Sequence[Sequence[int]], *, eps: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        """shapes: of the parameters in the flat tensor, in their order."""
        self.parameters, self.eps, self.betas = parameters, eps, betas
        self.grad = torch.zeros_like(parameters)
        pieces = torch.split(self.grad, [math.prod(shape) for shape in shapes])
        self._grads = [piece.view(tuple(shape)) for piece, shape in zip(pieces, shapes, strict=True)]  # views of `grad`
        self._zeros = parameters.new_zeros(())
        self.mean, self.variance = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self.steps = torch.zeros((), device=parameters.device)
        self._on_cpu = parameters.device.type == "cpu"
        # On a GPU the kernel gives each tensor of its list a block of its own, and works on one alone as long as on many.
        count = 1 if self._on_cpu else max(1, min(GPU_PIECES, parameters.numel() // 256))
        self._pieces = [list(x.chunk(count)) for x in (self.parameters, self.grad, self.mean, self.variance)]
        self._piece_steps = [self.steps] * len(self._pieces[0])

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None], learning_rate: float | Tensor, max_grad_norm: float | None) -> None:
        """grads: of the parameters in their order in the flat tensor; None where the loss does not depend on one."""
        torch._foreach_copy_(self._grads, [self._zeros if g is None else g for g in grads])
        if max_grad_norm is not None:
            self._clip(max_grad_norm)
        self.steps += 1
        torch._fused_adam_(
            self._pieces[0],
            self._pieces[1],
            self._pieces[2],
            self._pieces[3],
            [],
            self._piece_steps,
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

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
