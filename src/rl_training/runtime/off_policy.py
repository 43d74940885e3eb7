"""The off-policy loop: every value-based row, feed-forward or recurrent, uniform or prioritized, trains here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from typing_extensions import TypedDict

from rl_training.algorithms.q_learner import QLearner
from rl_training.data.replay import Replay
from rl_training.runtime.cadence import UpdatePlan, crossings
from rl_training.runtime.collector import Collector
from rl_training.runtime.run import Run, TrainResult
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


def train_off_policy(run: Run, *, actor: Collector, replay: Replay, plan: UpdatePlan, update: Updates) -> TrainResult:
    """Collect, store, learn, until the run has taken its steps. `update` samples, learns and gives priorities back, once a call."""
    clock, per_round = run.clock, plan.updates_per_round
    rounds: list[int] = []  # the multiples whose updates are still to be made

    def learn() -> None:
        for multiple in rounds:
            for _ in range(per_round):
                run.updated(update(multiple))
        rounds.clear()

    run.settle = learn
    with run:
        while run.running:
            before = clock.env_steps
            if update.compiles and plan.rounds(before, before + actor.most_steps, learning_starts=actor.learns_from):
                run.prepare_to_compile()
            # Updates that run beside the host are queued when the next actions are chosen, so that the environments step meanwhile.
            step = actor.step(before, learn if rounds else None)
            now = clock.env_steps = before + int(np.count_nonzero(step.valid))
            if now >= actor.learns_from and crossings(before, now, plan.train_frequency):
                actor.flush()
                if len(replay):
                    rounds += plan.rounds(before, now, learning_starts=actor.learns_from)
                if rounds and (not update.overlaps or run.has_something_due(before)):
                    learn()
            run.stepped(before, step)
        learn()
        return run.finish()
