"""Batches as the rows they lie in, for a compiled step that takes them apart itself."""

from __future__ import annotations

from typing import Any

from rl_training.data import PrioritizedReplayBuffer, ReplayBuffer
from rl_training.types import Batch


class PackedReplay:
    """A replay of transitions whose batches are rows. On the CPU the fields, as views made one by one, cost more than the rows do."""

    def __init__(self, replay: ReplayBuffer) -> None:
        self._replay = replay
        self.update_priorities = getattr(replay, "update_priorities", None)

    def sample(self, batch_size: int, **how: Any) -> Batch:
        return self._replay.sample(batch_size, packed=True, **how)

    def unpack(self, batch: Batch) -> Batch:
        return self._replay.unpack(batch)


def packed(replay: Any) -> PackedReplay | None:
    """Where the replay is exactly one of ours that can."""
    return PackedReplay(replay) if type(replay) in (ReplayBuffer, PrioritizedReplayBuffer) else None
