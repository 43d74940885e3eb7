"""The off-policy loop: every value-based row, feed-forward or recurrent, uniform or prioritized, trains here."""

from __future__ import annotations

import numpy as np

from rl_training.data.replay import Replay
from rl_training.runtime.actor import Actor
from rl_training.runtime.cadence import UpdatePlan, crossings
from rl_training.runtime.run import Run, TrainResult
from rl_training.runtime.updates import Updates


def train_off_policy(run: Run, *, actor: Actor, replay: Replay, plan: UpdatePlan, update: Updates) -> TrainResult:
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
            if update.compiles and before + actor.envs.num_envs >= actor.learns_from:
                run.prepare_to_compile()
            # Updates that run beside the host are queued when the next actions are chosen, so that the environments step meanwhile.
            step = actor.step(before, learn if rounds else None)
            now = clock.env_steps = before + int(np.count_nonzero(step.valid))
            if now >= actor.learns_from and (crossed := crossings(before, now, plan.train_frequency)):
                actor.feed.flush()
                if len(replay):
                    rounds += [multiple for multiple in crossed if multiple >= actor.learns_from]
                if rounds and (not update.overlaps or run.has_something_due(before)):
                    learn()
            run.stepped(before, step)
        learn()
        return run.finish()
