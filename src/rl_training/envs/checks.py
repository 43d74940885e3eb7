"""What environments must not give: other shapes, numbers that are not finite, masks that allow nothing. Who gave it is named, and where.

Before the first step such a thing is a UserError: these environments cannot be used. Later it is a RunError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rl_training.envs.masks import MaskError
from rl_training.envs.tally import Tally
from rl_training.errors import RunError, UserError

if TYPE_CHECKING:
    from rl_training.types import Array

LARGEST = float(np.finfo(np.float32).max)  # rewards are float32 wherever they are learned from
UNSUSPICIOUS = 1e76  # Σ r² below this: every reward is finite, in float32 too


class Checks:
    """For E environments whose observations are of `shape` [E, ...]. first_index: the number of the first one."""

    def __init__(self, shape: tuple[int, ...], tally: Tally, first_index: int) -> None:
        self._shape, self._tally, self._first_index = shape, tally, first_index

    def failure(self, text: str) -> Exception:
        return RunError(text) if self._tally.tick else UserError(text)

    def wrong_shape(self, shape: tuple[int, ...]) -> Exception:
        return self.failure(f"the environments gave observations of shape {shape}, not {self._shape}, at vector step {self._tally.tick}")

    def wrong_mask(self, error: MaskError) -> Exception:
        if error.env_index is None:
            return self.failure(f"the environments gave {error} at vector step {self._tally.tick}")
        return self.failure(f"environment {self._first_index + error.env_index} gave {error} at {self._tally.place(error.env_index)}")

    def require_final_shape(self, final: Array, index: int) -> None:
        """final: the observation that an episode of environment `index` ended with."""
        if np.shape(final) != self._shape[1:]:
            shapes = f"{np.shape(final)}, not {self._shape[1:]}"
            raise RunError(f"environment {self._first_index + index} ended an episode with an observation of shape {shapes}")

    def require_small_enough(self, rewards: Array) -> None:
        self._require("a reward", rewards, np.abs(rewards) <= LARGEST)

    def require_finite(self, obs: Array) -> None:
        if not np.isfinite(obs).all():
            self._require("an observation", obs, np.logical_and.reduce(np.isfinite(obs.reshape(len(obs), -1)), axis=1))

    def _require(self, what: str, values: Array, good: Array) -> None:
        """values: [E, ...]; good: [E]."""
        if good.all():
            return
        index = int(np.argmin(good))
        shown = " ".join(np.array2string(values[index], threshold=8).split())
        too_large = " in float32" if np.isfinite(values[index]).all() else ""
        where = f"environment {self._first_index + index}"
        raise self.failure(f"{where} gave {what} that is not finite{too_large} at {self._tally.place(index)}: {shown}")
