"""From a network's numbers to actions while training: ε-greedy on Q-values, or a draw from the policy. Each owns what it draws from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rl_training.models.distributions import Distribution
from rl_training.types import Array, State


class Behaviour(Protocol):
    learning_starts: int  # environment steps before the network is asked at all

    def begin(self, env_steps: int, num_envs: int) -> Array | None:
        """Before the network is asked: the actions [E, ...], where they do not depend on it."""
        ...

    def choose(self, numbers: Array) -> Array:
        """Actions [E, ...] as they are learned from; numbers [E, ...] are what `network.step` gave."""
        ...

    def to_env(self, actions: Array) -> Array:
        """The same as the environment takes them."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> Any: ...


class EpsilonGreedy:
    """A uniformly random action with probability ε, drawn for each environment on its own, else the best one.

    epsilon: environment steps → ε, or an array with one ε per environment. Before `learning_starts` actions are uniformly random.
    """

    def __init__(self, epsilon: Callable[[int], float] | Array, *, num_actions: int, learning_starts: int, seed: int) -> None:
        self._epsilon, self._num_actions, self.learning_starts = epsilon, num_actions, learning_starts
        self._rng = np.random.default_rng(seed)
        self._explore: Array = np.zeros(0, bool)
        self._uniform: Array = np.zeros(0, np.int64)
        self._explores = 0  # how many environments do

    def epsilon(self, env_steps: int) -> float | Array:
        """The exploration rate now: one for all environments, or one each."""
        if env_steps < self.learning_starts:
            return 1.0
        return self._epsilon(env_steps) if callable(self._epsilon) else self._epsilon

    def begin(self, env_steps: int, num_envs: int) -> Array | None:
        # The same draws every step, whatever comes of them: the stream does not depend on the network.
        self._explore = self._rng.random(num_envs) < self.epsilon(env_steps)
        if num_envs == 1:  # the same draw, without what `size` costs
            self._uniform = np.array([self._rng.integers(self._num_actions)])
        else:
            self._uniform = self._rng.integers(self._num_actions, size=num_envs)
        self._explores = int(np.count_nonzero(self._explore))
        return self._uniform if self._explores == num_envs else None

    def choose(self, numbers: Array) -> Array:
        greedy: Array = numbers.argmax(-1)
        return np.where(self._explore, self._uniform, greedy) if self._explores else greedy

    def to_env(self, actions: Array) -> Array:
        return actions

    def state_dict(self) -> State:
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        self._rng.bit_generator.state = state["rng"]


class Sampling:
    """A draw from the policy itself."""

    learning_starts = 0

    def __init__(self, distribution: Distribution, *, seed: int) -> None:
        self._distribution, self._rng = distribution, np.random.default_rng(seed)

    def begin(self, env_steps: int, num_envs: int) -> Array | None:
        return None

    def choose(self, numbers: Array) -> Array:
        return self._distribution.sample(numbers, self._rng)

    def to_env(self, actions: Array) -> Array:
        return self._distribution.to_env(actions)

    def state_dict(self) -> State:
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        self._rng.bit_generator.state = state["rng"]
