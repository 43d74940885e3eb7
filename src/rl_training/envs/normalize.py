"""Running normalisation of observations and rewards, with its own state, frozen in evaluation.

It lives in the adapter, not in an environment's wrapper: all environments share one set of statistics, and playing an episode again leaves
them alone. A step has both forms: the network acts on the normalised one, a replay holds the raw one (data/normalized.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rl_training.types import State

if TYPE_CHECKING:
    from rl_training.types import Array


class RunningMoments:
    """Mean and variance of all rows seen, merged batch by batch in float64 (Chan, Golub and LeVeque 1983).

    δ = mean_b − mean;  mean += δ·n_b/n;  M2 += M2_b + δ²·n_a·n_b/n;  var = M2/n, and 1 while nothing was seen.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.mean = np.zeros(shape, np.float64)
        self._m2 = np.zeros(shape, np.float64)

    def update(self, rows: Array) -> None:
        """rows: [n, *shape]."""
        if len(rows) == 0:
            return
        rows = rows.astype(np.float64)
        batch_mean = rows.mean(axis=0)
        total = self.count + len(rows)
        delta = batch_mean - self.mean
        self._m2 += ((rows - batch_mean) ** 2).sum(axis=0) + delta**2 * (self.count * len(rows) / total)
        self.mean += delta * (len(rows) / total)
        self.count = total

    @property
    def var(self) -> Array:
        return self._m2 / self.count if self.count else np.ones_like(self._m2)

    def state_dict(self) -> State:
        return {"count": self.count, "mean": self.mean.copy(), "m2": self._m2.copy()}

    def load_state_dict(self, state: State) -> None:
        self.count, self.mean, self._m2 = int(state["count"]), np.asarray(state["mean"]).copy(), np.asarray(state["m2"]).copy()


class ObservationNormalizer:
    """clip((obs − mean) / √(var + eps), ±clip), float32. Every true observation is counted once: reset steps repeat none."""

    def __init__(self, shape: tuple[int, ...], *, clip: float = 10.0, eps: float = 1e-8, update: bool = True) -> None:
        self.moments = RunningMoments(shape)
        self.clip, self.eps, self.updating = clip, eps, update

    def step(self, obs: Array, final_obs: Array, is_first: Array, valid: Array) -> tuple[Array, Array]:
        """obs, final_obs: [E, ...]; counts `final_obs` where `valid` and `obs` where `is_first`, then normalises both."""
        if self.updating:
            self.moments.update(final_obs[valid])
            self.moments.update(obs[is_first])
        normal = self.normalize(obs)
        return normal, normal if final_obs is obs else self.normalize(final_obs)

    @property
    def shift(self) -> Array:
        return self.moments.mean

    @property
    def scale(self) -> Array:
        scale: Array = np.sqrt(self.moments.var + self.eps)
        return scale

    def normalize(self, obs: Array) -> Array:
        scaled = (obs - self.shift) / self.scale
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)

    def state_dict(self) -> State:
        return self.moments.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.moments.load_state_dict(state)


class RewardNormalizer:
    """clip(r / √(var(R) + eps), ±clip), R ← γR + r the discounted return so far, from 0 at each episode's start (arXiv:2005.12729, A.2)."""

    def __init__(self, num_envs: int, *, gamma: float = 0.99, clip: float = 10.0, eps: float = 1e-8, update: bool = True) -> None:
        self.moments = RunningMoments(())
        self.gamma, self.clip, self.eps, self.updating = gamma, clip, eps, update
        self._returns = np.zeros(num_envs, np.float64)

    def step(self, rewards: Array, ended: Array, valid: Array) -> Array:
        """rewards: [E] raw; a reset step's 0 stays 0 and is not counted."""
        self._returns = np.where(valid, self.gamma * self._returns + rewards, self._returns)
        if self.updating:
            self.moments.update(self._returns[valid])
        self._returns[ended] = 0.0
        scaled: Array = np.clip(rewards / self.scale, -self.clip, self.clip)
        return scaled

    @property
    def shift(self) -> Array:
        return np.zeros(())

    @property
    def scale(self) -> Array:
        return np.asarray(np.sqrt(self.moments.var + self.eps))

    def reset(self, which: Array | None = None) -> None:
        self._returns[slice(None) if which is None else which] = 0.0

    def state_dict(self) -> State:
        return {**self.moments.state_dict(), "returns": self._returns.copy()}

    def load_state_dict(self, state: State) -> None:
        self.moments.load_state_dict(state)
        if len(state["returns"]) == len(self._returns):  # an evaluation may hold another number of environments
            self._returns = np.asarray(state["returns"]).copy()
