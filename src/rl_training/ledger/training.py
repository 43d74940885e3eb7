"""The training return as papers draw it: the mean over the episodes that ended in each stretch of a run, exploration and all."""

from __future__ import annotations

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.types import EnvStep

WINDOW = 250_000
"""Agent steps of one stretch: an iteration of Dopamine's (Castro et al., 2018), so that its curves and ours can be laid side by side."""


class TrainingReturns(Callback):
    """Real returns (before clipping or normalisation) of the training episodes, by the stretch they ended in."""

    def __init__(self, window: int = WINDOW) -> None:
        self.window = window
        self._sums: dict[int, tuple[float, int]] = {}
        self._steps = 0

    def on_step(self, run: Run, step: EnvStep) -> None:
        self._steps = run.clock.env_steps
        for episode in step.episodes:
            stretch = (self._steps - 1) // self.window  # the step that completes a stretch is still its own
            total, count = self._sums.get(stretch, (0.0, 0))
            self._sums[stretch] = total + episode.episode_return, count + 1

    def rows(self) -> list[list[float]]:
        """[step at which the stretch ends, mean return, episodes], without the stretches in which no episode ended."""
        return [
            [min((stretch + 1) * self.window, self._steps), total / count, count] for stretch, (total, count) in sorted(self._sums.items())
        ]
