"""The on-policy loop: collect a rollout, learn from it, forget it. PPO, PQN and their recurrent forms train here."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.runtime.actor import Actor
from rl_training.runtime.run import Run, TrainResult


def train_on_policy(run: Run, *, actor: Actor, learner: Any, rollout: RolloutBuffer) -> TrainResult:
    """Learn whenever the rollout is full, until the run has taken its steps. Steps of a rollout that the end leaves unfinished are not
    learned from: they are saved, and a run that goes on finishes it."""
    clock = run.clock
    with run:
        while run.running:
            before = clock.env_steps
            step = actor.step(before)
            clock.env_steps = before + int(np.count_nonzero(step.valid))
            if rollout.full:
                # Schedules are read where the rollout began: the first one learns at the configured rate, the last one not at its end.
                result = learner.learn(rollout, global_step=clock.env_steps - rollout.num_transitions)
                rollout.clear()
                if result.num_gradient_steps:
                    run.updated(result)
            run.stepped(before, step)
        return run.finish()
