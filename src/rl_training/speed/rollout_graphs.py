"""One gradient step of PPO or PQN as what a CUDA graph replays (see graphs.py): fixed tensors in the place of each minibatch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.pqn import PQN
from rl_training.algorithms.rollouts import StepView
from rl_training.speed.graphs import Captured, Scheduled
from rl_training.types import Batch


def use_graphed_steps(learner: PPO | PQN, steps: int, device: torch.device) -> None:
    """Where minibatches are steps, of at most so many: sequences have another shape every time. `target_kl` asks the host after each, which
    no graph can."""
    if learner.view is StepView and getattr(learner, "target_kl", None) is None:
        learner.gradient_step = GraphedStep(learner, min(steps, learner.minibatch_size), device)


class GraphedStep:
    """`learner.eager_step` over tensors of `rows` rows. Minibatches are equal parts of at most that many: where one has fewer, a mask takes
    the rows left over out of every mean. Learning rate and clip range are tensors on the device."""

    def __init__(self, learner: PPO | PQN, rows: int, device: torch.device) -> None:
        self._learner, self._rows, self._device = learner, rows, device
        self._filled = 0
        self._numbers = [Scheduled(device, torch.float32) for _ in range(2 if isinstance(learner, PPO) else 1)]
        self._step = Captured(self._one_step, device, [])
        self._batch: Batch = {}
        self._outcome: Any = None

    @torch.no_grad()
    def __call__(self, batch: Batch, *numbers: float) -> Any:
        """What `eager_step` returns, of the minibatch's own rows."""
        count = len(batch["obs"])
        if not self._batch:
            self._batch = {name: x.new_zeros(self._rows, *x.shape[1:]) for name, x in batch.items()}
            self._batch["mask"] = torch.zeros(self._rows, device=self._device)
        for name, tensor in batch.items():
            self._batch[name][:count].copy_(tensor)
        if count != self._filled:
            self._batch["mask"][:count], self._batch["mask"][count:], self._filled = 1.0, 0.0, count
        for scheduled, number in zip(self._numbers, numbers, strict=True):
            scheduled.set(number)
        self._step()
        # Copies: the next step writes where this one's are, and metrics are read when a rollout is learned from.
        own = {name: _own_rows(x, count) for name, x in self._outcome._asdict().items() if name != "mask"}
        return type(self._outcome)(**own, mask=None)

    def _one_step(self) -> None:
        self._outcome = self._learner.eager_step(self._batch, *(number.value for number in self._numbers))


def _own_rows(x: Any, count: int) -> Any:
    if not isinstance(x, Tensor):
        return x
    return x[:count].clone() if x.ndim else x.clone()
