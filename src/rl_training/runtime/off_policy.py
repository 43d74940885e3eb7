"""The off-policy loop: every value-based row, feed-forward or recurrent, uniform or prioritized, trains here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.runtime.actor import Actor
from rl_training.runtime.cadence import crossings
from rl_training.runtime.run import Run, TrainResult
from rl_training.types import Batch


@dataclass(frozen=True)
class UpdatePlan:
    """One round per multiple of `train_frequency` crossed (environment steps), `gradient_steps` updates a round."""

    batch_size: int
    train_frequency: int
    gradient_steps: int  # -1: as many as environment steps in the round

    @property
    def updates_per_round(self) -> int:
        return self.train_frequency if self.gradient_steps == -1 else self.gradient_steps


def train_off_policy(
    run: Run, *, actor: Actor, learner: Any, replay: Any, plan: UpdatePlan, beta: Callable[[int], float] | None
) -> TrainResult:
    """Collect, store, learn, until the run has taken its steps. `beta` (of the environment steps) says that the replay is prioritized."""
    clock, per_round = run.clock, plan.updates_per_round
    with run:
        while run.running:
            before = clock.env_steps
            step = actor.step(before)
            now = clock.env_steps = before + int(np.count_nonzero(step.valid))
            if now >= actor.learns_from and len(replay):
                for multiple in crossings(before, now, plan.train_frequency):
                    if multiple < actor.learns_from:
                        continue
                    for _ in range(per_round):
                        batch: Batch
                        if beta is None:
                            batch = replay.sample(plan.batch_size)
                            result = learner.update(batch, global_step=multiple)
                        else:
                            batch = replay.sample(plan.batch_size, beta=beta(multiple))
                            result = learner.update(batch, global_step=multiple)
                            replay.update_priorities(batch["indices"], learner.last_priorities)
                        run.updated(result)
            run.stepped(before, step)
        return run.finish()
