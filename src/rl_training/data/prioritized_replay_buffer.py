"""Proportional prioritized replay (arXiv:1511.05952) with stratified sampling and importance weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_training.data.frames import FrameLayout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sampled_ring import Priorities, PrioritizedBuffer
from rl_training.data.storage import Field

if TYPE_CHECKING:
    from rl_training.types import Batch


class PrioritizedReplayBuffer(PrioritizedBuffer, ReplayBuffer):
    """`ReplayBuffer` whose transitions are drawn with P(i) ∝ (|priority_i| + priority_eps)^alpha.

    New transitions get the largest raw priority seen so far (1 at the start), or their own where they bring `priorities`. A batch takes one
    draw from each of B strata of equal probability. On the CPU a sum tree, elsewhere a flat cumulative sum that never asks the host
    (samplers.py).
    """

    packs = True

    def __init__(
        self,
        capacity: int,
        obs_shape: Sequence[int],
        action_shape: Sequence[int] = (),
        obs_dtype: Any = torch.float32,
        device: str | torch.device = "cpu",
        seed: int = 0,
        *,
        alpha: float = 0.6,
        priority_eps: float = 1e-6,
        action_dtype: Any = torch.int64,
        extra: Mapping[str, Field] | None = None,
        frames: FrameLayout | None = None,
    ) -> None:
        priorities = Priorities(alpha, priority_eps)
        options: dict[str, Any] = {"action_dtype": action_dtype, "extra": extra, "frames": frames, "_priorities": priorities}
        super().__init__(capacity, obs_shape, action_shape, obs_dtype, device, seed, **options)

    def sample(self, batch_size: int, beta: float | Tensor = 0.4, *, packed: bool = False) -> Batch:
        """`ReplayBuffer.sample` + `indices` [B] int64 and `weights` [B] float32 = (N·P(i))^−β over their maximum in the batch."""
        return self._whole(self._ring.sample(batch_size, beta, packed=packed))
