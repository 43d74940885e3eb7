"""One call of the off-policy loop's learning: sample, learn, give the priorities back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from typing_extensions import TypedDict

from rl_training.algorithms.q_learner import QLearner
from rl_training.data.replay import Replay
from rl_training.types import Batch, UpdateResult


class Updates(Protocol):
    """One call at a global step."""

    overlaps: bool
    """Whether a call returns before its work is done, so that the environments can step meanwhile."""
    compiles: bool
    """Whether the next call compiles first, which takes long."""

    def __call__(self, global_step: int) -> UpdateResult: ...


class SampleOptions(TypedDict, total=False):
    """What a replay is told beside the batch's size; nothing that it need not know."""

    beta: float
    packed: bool


class SampledUpdates:
    """Sample, update, give the priorities back."""

    overlaps = compiles = False

    def __init__(self, learner: QLearner, replay: Replay, batch_size: int, beta: Callable[[int], float] | None) -> None:
        """beta: of the environment steps, says that the replay is prioritized."""
        self.learner, self.replay, self.batch_size, self.beta = learner, replay, batch_size, beta
        self.packed = False  # whether batches are left in rows, for a step that takes them apart itself

    def __call__(self, global_step: int) -> UpdateResult:
        return self.learn_from(self.sample(global_step), global_step)

    def sample(self, global_step: int) -> Batch:
        how: SampleOptions = {"packed": True} if self.packed else {}
        if self.beta is not None:
            how["beta"] = self.beta(global_step)
        return self.replay.sample(self.batch_size, **how)

    def learn_from(self, batch: Batch, global_step: int) -> UpdateResult:
        result = self.learner.update(batch, global_step=global_step)
        if self.beta is not None:
            self.replay.update_priorities(batch["indices"], self.learner.last_priorities)
        return result
