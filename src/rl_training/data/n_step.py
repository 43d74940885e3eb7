"""n-step transitions from a stream of vector steps (Sutton 1988; arXiv:1710.02298, §3).

    R_t = Σ_{k<m} γ^k r_{t+k},   discount = γ^m · (1 − terminated),   next_obs = s_{t+m}

with m = n inside an episode and the steps that are left at its end, so no tail is lost and no window joins two episodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.data.storage import as_array

if TYPE_CHECKING:
    from rl_training.types import Array, State


class NStepAccumulator:
    """Open windows of up to n−1 steps for each of E environments.

    All environments share one clock: the newest step of every open window lies in ring slot `clock % n`, so a push writes one row
    of each ring `[n, E, ...]` and the usual case (every window full, no episode's end) is a handful of whole-array operations.
    """

    def __init__(self, n_step: int, gamma: float, num_envs: int) -> None:
        if n_step < 1 or num_envs < 1:
            raise ValueError(f"n_step and num_envs must be at least 1, got {n_step} and {num_envs}")
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
        self.n_step, self.gamma, self.num_envs = n_step, gamma, num_envs
        self._clock = 0
        self._counts = np.zeros(num_envs, np.int64)  # steps in each open window
        self._powers = gamma ** np.arange(n_step + 1, dtype=np.float64)
        self._all_full = False  # every window holds n-1 steps
        self._no_dones = np.zeros(num_envs, np.float32)
        self._full_discount = np.full(num_envs, self._powers[n_step], np.float32)
        self._no_dones.flags.writeable = self._full_discount.flags.writeable = False  # handed out as they are
        # row s: γ^age of each ring slot when the newest step is in slot s and the window is full
        slots = np.arange(n_step)
        self._slot_powers = self._powers[(slots[None, :] - slots[:, None] - 1) % n_step]
        self._obs: Array | None = None  # rings [n, E, ...], made at the first push from what it brings
        self._actions: Array | None = None
        self._rewards = np.zeros((n_step, num_envs))

    def push(
        self,
        *,
        obs: Array,
        actions: Array,
        rewards: Array,
        next_obs: Array,
        terminated: Array,
        truncated: Array,
        valid: Array | None = None,
    ) -> dict[str, Array]:
        """One step of every environment (arrays over E; `next_obs` the true final one at an end; where `valid` is false: no step).

        Returns the transitions now ready, by environment, then time: `obs, actions, rewards, next_obs, dones, discounts` (float32),
        possibly none. What they hold may be shared, or the very arrays given here: copy it before the next step, never write to it.
        """
        if valid is not None and np.count_nonzero(valid) == self.num_envs:
            valid = None
        if self.n_step == 1:
            return self._one_step(obs, actions, rewards, next_obs, terminated, valid)
        if self._obs is None or self._actions is None:
            self._obs, self._actions = (np.zeros((self.n_step, *value.shape), value.dtype) for value in (obs, actions))
        self._clock += 1
        newest = self._clock % self.n_step
        if valid is not None:
            self._keep_in_step(np.flatnonzero(~np.asarray(valid, bool)))
            rows = np.flatnonzero(valid)
            self._obs[newest, rows], self._actions[newest, rows] = obs[rows], actions[rows]
            self._rewards[newest, rows] = np.asarray(rewards)[rows]
            self._counts[rows] += 1
        else:
            self._obs[newest], self._actions[newest], self._rewards[newest] = obs, actions, rewards
            if self._all_full and not np.count_nonzero(terminated) and not np.count_nonzero(truncated):
                oldest = (newest + 1) % self.n_step
                return {
                    "obs": self._obs[oldest].copy(),
                    "actions": self._actions[oldest].copy(),
                    "rewards": (self._slot_powers[newest] @ self._rewards).astype(np.float32),
                    "next_obs": next_obs,
                    "dones": self._no_dones,
                    "discounts": self._full_discount,
                }
            self._counts += 1
        return self._emit(newest, next_obs, np.asarray(terminated, bool), np.asarray(truncated, bool), valid)

    def _one_step(
        self, obs: Array, actions: Array, rewards: Array, next_obs: Array, terminated: Array, valid: Array | None
    ) -> dict[str, Array]:
        if valid is not None:
            rows, given = np.flatnonzero(valid), (obs, actions, rewards, next_obs, terminated)
            obs, actions, rewards, next_obs, terminated = (np.asarray(value)[rows] for value in given)
        if valid is None and not np.count_nonzero(terminated):
            dones, discounts = self._no_dones, self._full_discount
        else:
            dones = np.asarray(terminated, np.float32)
            discounts = self._full_discount[0] * (1.0 - dones)
        rewards = np.asarray(rewards, np.float32)
        return {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs, "dones": dones, "discounts": discounts}

    def _keep_in_step(self, idle: Array) -> None:
        """Environments that made no step: move their open windows on by one slot, so that the shared clock still fits them."""
        assert self._obs is not None and self._actions is not None
        for env in idle[self._counts[idle] > 0]:
            for ring in (self._obs, self._actions, self._rewards):
                ring[:, env] = np.roll(ring[:, env], 1, axis=0)

    def _emit(self, newest: int, next_obs: Array, terminated: Array, truncated: Array, valid: Array | None) -> dict[str, Array]:
        assert self._obs is not None and self._actions is not None
        n, counts = self.n_step, self._counts
        ended = terminated | truncated
        ready = np.where(ended, counts, counts == n)  # transitions of each environment that come out now
        if valid is not None:
            ready = np.where(valid, ready, 0)
        env = np.repeat(np.arange(self.num_envs), ready)
        nth = np.arange(len(env)) - np.repeat(np.cumsum(ready) - ready, ready)  # 0 is the oldest of its window
        steps = counts[env] - nth
        first = (newest + 1 - steps) % n
        ages = np.arange(n)
        window = self._rewards[(first[:, None] + ages) % n, env[:, None]]  # [M, n]
        returns = np.where(ages < steps[:, None], self._powers[:n] * window, 0.0).sum(axis=1)
        dones = terminated[env].astype(np.float32)
        counts -= counts == n
        counts[(ready > 0) & ended] = 0
        self._all_full = bool((counts == n - 1).all())
        return {
            "obs": self._obs[first, env],
            "actions": self._actions[first, env],
            "rewards": returns.astype(np.float32),
            "next_obs": next_obs[env],
            "dones": dones,
            "discounts": (self._powers[steps] * (1.0 - dones)).astype(np.float32),
        }

    def drop(self, env_indices: Any) -> None:
        """Forget the open windows of these environments, whose episodes cannot go on."""
        self._counts[env_indices] = 0
        self._all_full = False

    def state_dict(self) -> State:
        rings = None if self._obs is None or self._actions is None else {"obs": self._obs.copy(), "actions": self._actions.copy()}
        return {"clock": self._clock, "counts": self._counts.copy(), "rewards": self._rewards.copy(), "rings": rings}

    def load_state_dict(self, state: State) -> None:
        rewards = as_array(state["rewards"]).astype(np.float64)
        if rewards.shape != self._rewards.shape:
            raise ValueError(f"saved windows have shape {rewards.shape}, expected {self._rewards.shape} (n_step, num_envs)")
        self._clock, self._counts, self._rewards = int(state["clock"]), as_array(state["counts"]).astype(np.int64), rewards
        self._all_full = bool((self._counts == self.n_step - 1).all())
        rings = state["rings"]
        self._obs, self._actions = (None, None) if rings is None else (as_array(rings["obs"]).copy(), as_array(rings["actions"]).copy())
