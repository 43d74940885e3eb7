"""Prioritized replay of sequences (R2D2, Kapturowski et al., ICLR 2019, §2.3): `RecurrentReplayBuffer` with a priority for each chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_training.data.frames import FrameLayout
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.data.sampled_ring import Priorities, PrioritizedBuffer
from rl_training.data.storage import Field

if TYPE_CHECKING:
    from rl_training.types import Batch


class PrioritizedRecurrentReplayBuffer(PrioritizedBuffer, RecurrentReplayBuffer):
    """Chunks drawn with P(i) ∝ (|priority_i| + priority_eps)^alpha, new ones at the largest raw priority seen so far (1 at the start),
    or at their own where they bring `priorities`.

    A priority belongs to a slot: give a batch's priorities back before adding so many chunks that its slots are overwritten.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        obs_shape: Sequence[int],
        sequence_length: int,
        hidden_size: int,
        num_layers: int = 1,
        sequence_overlap: int = 0,
        *,
        alpha: float = 0.6,
        priority_eps: float = 1e-6,
        burn_in: int = 0,
        action_shape: Sequence[int] = (),
        obs_dtype: Any = torch.float32,
        action_dtype: Any = torch.int64,
        device: str | torch.device = "cpu",
        seed: int = 0,
        state_parts: int = 2,
        extra: Mapping[str, Field] | None = None,
        frames: FrameLayout | None = None,
    ) -> None:
        super().__init__(
            capacity,
            num_envs,
            obs_shape,
            sequence_length,
            hidden_size,
            num_layers,
            sequence_overlap,
            burn_in=burn_in,
            action_shape=action_shape,
            obs_dtype=obs_dtype,
            action_dtype=action_dtype,
            device=device,
            seed=seed,
            state_parts=state_parts,
            extra=extra,
            frames=frames,
            _priorities=Priorities(alpha, priority_eps),
        )

    def sample(self, batch_size: int, beta: float | Tensor = 0.6, *, packed: bool = False) -> Batch:
        """`RecurrentReplayBuffer.sample` + `indices` [B] int64 and `weights` [B] float32 = (N·P(i))^−β over their maximum in the batch."""
        return self._time_first(self._ring.sample(batch_size, beta))
