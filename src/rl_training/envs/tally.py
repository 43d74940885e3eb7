"""What E environments have played: the returns and lengths of their episodes, for whoever reads them and for messages that name a place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rl_training.types import Episode, State

if TYPE_CHECKING:
    from rl_training.types import Array


class Tally:
    """Counts vector steps (`tick`); an episode's length is the ticks since it began."""

    def __init__(self, num_envs: int, first_index: int) -> None:
        self._first_index = first_index  # of these environments among those of a run
        self.tick = 0
        self._returns = np.zeros(num_envs, np.float64)
        self._began = np.zeros(num_envs, np.int64)
        self._finished = np.zeros((2, num_envs), np.int64)  # episodes finished, and the steps in them

    def reset(self) -> None:
        """All begin an episode; those under way are forgotten."""
        self._returns[:] = 0.0
        self._began[:] = self.tick

    def begin(self, which: Array) -> None:
        """This step was the reset of `which` [E], and belongs to no episode."""
        self._began[which] = self.tick

    def add(self, rewards: Array) -> None:
        self._returns = self._returns + rewards  # in place it takes NumPy several times as long, for an array of one

    def finish(self, ended: Array) -> tuple[Episode, ...]:
        """The episodes of `ended` [E], which are over. One by one: few end at once, and NumPy's indexing by flags takes longer."""
        episodes = []
        for i in ended.nonzero()[0].tolist():
            length = self.tick - int(self._began[i])
            episodes.append(Episode(self._first_index + i, float(self._returns[i]), length))
            self._finished[0, i] += 1
            self._finished[1, i] += length
            self._returns[i], self._began[i] = 0.0, self.tick
        return tuple(episodes)

    def place(self, index: int) -> str:
        """Where an environment is, for an error about it."""
        length = int(self.tick - self._began[index])
        return f"its step {int(self._finished[1, index]) + length} (step {length} of its episode {int(self._finished[0, index])})"

    def state_dict(self) -> State:
        return {"returns": self._returns.copy(), "lengths": self.tick - self._began, "finished": self._finished.copy()}

    def load_state_dict(self, state: State, restored: Array) -> None:
        """restored: [E], whose episodes go on; the others begin one."""
        self.tick, self._finished = 0, np.asarray(state["finished"]).copy()
        self._returns = np.where(restored, state["returns"], 0.0)
        self._began = np.where(restored, -np.asarray(state["lengths"]), 0)
