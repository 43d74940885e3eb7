"""Replay in raw units, learned from in those of now.

Statistics move while a run goes on. What was stored in the units of its day would mix them: a raw 5.0 as 0.0, 0.76 and 0.08. So the replay
holds what the environments gave, and a batch is normalised when it is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from rl_training.data.fronts import ReplayFront

if TYPE_CHECKING:
    from rl_training.data.replay import Replay
    from rl_training.types import Array, Batch


class Units(Protocol):
    """A running normaliser: clip((x − shift) / scale, ±clip), by its statistics so far (envs/normalize.py)."""

    clip: float

    @property
    def shift(self) -> Array: ...

    @property
    def scale(self) -> Array: ...


class NormalizedReplay(ReplayFront["Replay"]):
    """A replay whose batches are normalised: `obs` and `next_obs` by `observations`, `rewards` by `rewards` (None: left as they are).

    A sum of n rewards is scaled as one reward is, and not clipped: that is for single ones (`clip_rewards`).
    The statistics are small tensors beside the replay, written in place by `refresh`, which must be called before learning. A CUDA graph so
    reads those of now; a packed batch carries them, so that they are inputs of the compiled step. In float64, as the actor's are: a batch
    is to the last bit what the acting network would be shown now.
    """

    def __init__(
        self, replay: Replay, *, observations: Units | None, rewards: Units | None, clip_rewards: bool, device: torch.device
    ) -> None:
        super().__init__(replay)
        self._units = {"obs": observations, "rewards": rewards}
        self._clip_rewards = clip_rewards
        self._now: dict[str, Tensor] = {}
        for name, units in self._units.items():
            if units is not None:
                shape = units.scale.shape
                self._now[f"{name} shift"] = torch.zeros(shape, dtype=torch.float64, device=device)
                self._now[f"{name} scale"] = torch.ones(shape, dtype=torch.float64, device=device)
        self.refresh()

    def refresh(self) -> None:
        """Take over the statistics as they are now."""
        for name, units in self._units.items():
            if units is not None:
                for part, value in (("shift", units.shift), ("scale", units.scale)):
                    # from memory that is not page-locked: the driver has its own copy when this returns, and waits for nothing
                    self._now[f"{name} {part}"].copy_(torch.as_tensor(value, dtype=torch.float64), non_blocking=True)

    def sample(self, batch_size: int, beta: float | Tensor = 0.0, *, packed: bool = False) -> Batch:
        batch = self._replay.sample(batch_size, beta, packed=packed)
        return {**batch, **self._now} if packed else self._normalized(batch, self._now)

    def unpack(self, batch: Batch) -> Batch:
        rows = {name: value for name, value in batch.items() if name not in self._now}
        fields = self._replay.unpack(rows)
        return fields if len(rows) == len(batch) else self._normalized(fields, batch)

    def _normalized(self, batch: Batch, now: Batch) -> Batch:
        """now: where the statistics are."""
        made = dict(batch)
        for name, of in (("obs", "obs"), ("next_obs", "obs"), ("rewards", "rewards")):
            units = self._units[of]
            if units is not None:
                values = (batch[name].double() - now[f"{of} shift"]) / now[f"{of} scale"]
                clips = of == "obs" or self._clip_rewards
                made[name] = (values.clamp(-units.clip, units.clip) if clips else values).float()
        return made

    @property
    def packs(self) -> bool:
        return self._replay.packs
