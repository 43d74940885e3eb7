"""From a network's outputs to actions while training: ε-greedy on Q-values, or a draw from the policy. Each owns what it draws from.

masks: [E, A] bool, the actions that each observation allows; None: all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rl_training.models.distributions import Distribution
from rl_training.types import Array, State


class Behaviour(Protocol):
    learning_starts: int  # environment steps before the network is asked at all

    def begin(self, env_steps: int, num_envs: int, masks: Array | None = None) -> Array | None:
        """Before the network is asked: the actions [E, ...], where they do not depend on it."""
        ...

    def choose(self, outputs: Array, masks: Array | None = None) -> Array:
        """Actions [E, ...] as they are learned from; outputs [E, ...] are what `network.step` gave."""
        ...

    def to_env(self, actions: Array) -> Array:
        """The same as the environment takes them."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> Any: ...


def allowed_outputs(outputs: Array, masks: Array | None) -> Array:
    """Q-values or logits [E, A] among which what is forbidden is never the largest, and has no probability."""
    return outputs if masks is None else np.where(masks, outputs, -np.inf)


def nth_allowed(masks: Array, shares: Any) -> Array:
    """The allowed action at `shares` [E] (0 ≤ share < 1) of the way through those of each row: uniform where the shares are."""
    counts = masks.sum(-1)
    nth = np.minimum((shares * counts).astype(np.int64), counts - 1)
    actions: Array = (masks.cumsum(-1) > nth[:, None]).argmax(-1)
    return actions


class EpsilonGreedy:
    """A uniformly random allowed action with probability ε, drawn for each environment on its own, else the best one.

    epsilon: environment steps → ε, or an array with one ε per environment. Before `learning_starts` actions are uniformly random.
    ahead: for how many steps to draw at once. The draws are the same however many: together, they are made by code that is at hand.
    """

    MOST_AHEAD = 65_536

    def __init__(
        self, epsilon: Callable[[int], float] | Array, *, num_actions: int, learning_starts: int, seed: int, ahead: int = 1
    ) -> None:
        self._epsilon, self._num_actions, self.learning_starts = epsilon, num_actions, learning_starts
        self._rng, self._ahead = np.random.default_rng(seed), ahead
        self._drawn: list[tuple[Any, Array]] = []  # of each step: uniforms [E] (one number for one environment), random actions [E]
        self._used = 0  # steps of these that are behind us
        self._before: Any = None  # the generator's state before it made them
        self._explore: Any = False  # [E] bool, or one for one environment
        self._mixed = False  # some explore
        self._uniform: Array = np.zeros(0, np.int64)

    def epsilon(self, env_steps: int) -> float | Array:
        """The exploration rate now: one for all environments, or one each."""
        if env_steps < self.learning_starts:
            return 1.0
        return self._epsilon(env_steps) if callable(self._epsilon) else self._epsilon

    def begin(self, env_steps: int, num_envs: int, masks: Array | None = None) -> Array | None:
        # The same draws every step, whatever comes of them: the stream does not depend on the network.
        if self._used >= len(self._drawn):
            self._draw(num_envs)
        uniforms, self._uniform = self._drawn[self._used]
        self._used += 1
        epsilon = self.epsilon(env_steps)
        self._explore = uniforms < epsilon
        explores = int(bool(self._explore) if num_envs == 1 else np.count_nonzero(self._explore))
        self._mixed = explores > 0
        if masks is not None and explores:
            # Where u < ε, u / ε is uniform too: the draws are the same as without masks, however many actions these allow.
            self._uniform = nth_allowed(masks, np.where(self._explore, uniforms / np.maximum(epsilon, np.finfo(np.float64).tiny), 0.0))
        return self._uniform if explores == num_envs else None

    def _draw(self, num_envs: int) -> None:
        """Draw ahead. After a resume this begins as it did then, so that `_used` steps of it are behind us."""
        rng, actions = self._rng, self._num_actions
        self._used -= len(self._drawn)
        self._before = rng.bit_generator.state
        steps = range(max(self._ahead, self._used + 1))
        if num_envs == 1:  # the same draws, without what arrays of one cost
            self._drawn = [(rng.random(), np.array([rng.integers(actions)])) for _ in steps]
        else:
            self._drawn = [(rng.random(num_envs), rng.integers(actions, size=num_envs)) for _ in steps]

    def choose(self, outputs: Array, masks: Array | None = None) -> Array:
        greedy: Array = allowed_outputs(outputs, masks).argmax(-1)
        return np.where(self._explore, self._uniform, greedy) if self._mixed else greedy

    def to_env(self, actions: Array) -> Array:
        return actions

    def state_dict(self) -> State:
        if self._used >= len(self._drawn):
            return {"rng": self._rng.bit_generator.state, "used": self._used - len(self._drawn)}
        return {"rng": self._before, "used": self._used}

    def load_state_dict(self, state: State) -> None:
        used = int(state.get("used", 0))
        if not 0 <= used <= self.MOST_AHEAD:
            raise ValueError(f"{used} steps of saved exploration are used, of at most {self.MOST_AHEAD}")
        self._rng.bit_generator.state = state["rng"]
        self._drawn, self._used = [], used


class Sampling:
    """A draw from the policy itself."""

    learning_starts = 0

    def __init__(self, distribution: Distribution, *, seed: int) -> None:
        self._distribution, self._rng = distribution, np.random.default_rng(seed)

    def begin(self, env_steps: int, num_envs: int, masks: Array | None = None) -> Array | None:
        return None

    def choose(self, outputs: Array, masks: Array | None = None) -> Array:
        return self._distribution.sample(allowed_outputs(outputs, masks), self._rng)

    def to_env(self, actions: Array) -> Array:
        return self._distribution.to_env(actions)

    def state_dict(self) -> State:
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        self._rng.bit_generator.state = state["rng"]
