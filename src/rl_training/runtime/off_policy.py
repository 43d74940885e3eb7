"""The off-policy loop: every value-based row, feed-forward or recurrent, uniform or prioritized, trains here."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.runtime.accelerate import Updates
from rl_training.runtime.actor import Actor
from rl_training.runtime.cadence import UpdatePlan, crossings
from rl_training.runtime.run import Run, TrainResult


def train_off_policy(run: Run, *, actor: Actor, replay: Any, plan: UpdatePlan, update: Updates) -> TrainResult:
    """Collect, store, learn, until the run has taken its steps. `update` samples, learns and gives priorities back, once a call."""
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
                        run.updated(update(multiple))
            run.stepped(before, step)
        return run.finish()
