"""n-step transitions from a stream of vector steps (Sutton 1988; arXiv:1710.02298, §3).

    R_t = Σ_{k<m} γ^k r_{t+k},   discount = γ^m · (1 − terminated),   next_obs = s_{t+m}

with m = n inside an episode and the steps that are left at its end, so no tail is lost and no window joins two episodes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.data.storage import as_array
from rl_training.types import Step

if TYPE_CHECKING:
    from rl_training.types import Array, Items, State

OF_NEXT = frozenset({"next_action_masks"})
"""What rides along and belongs to `next_obs`, so to a window's newest step; everything else belongs to its first."""


class NStepAccumulator:
    """Open windows of up to n−1 steps for each of E environments.

    All environments share one clock: the newest step of every open window lies in ring slot `clock % n`, so a push writes one row
    of each ring `[n, E, ...]` and the usual case (every window full, no episode's end) is a handful of whole-array operations.
    A lost life cuts a window as a termination does. carried: fields of `Step` that come out with the transitions.
    """

    def __init__(self, n_step: int, gamma: float, num_envs: int, *, carried: Collection[str] = ()) -> None:
        if n_step < 1 or num_envs < 1:
            raise ValueError(f"n_step and num_envs must be at least 1, got {n_step} and {num_envs}")
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
        self.n_step, self.gamma, self.num_envs = n_step, gamma, num_envs
        self._carried = tuple(carried)
        self._of_first = tuple(name for name in carried if name not in OF_NEXT)
        self._of_next = tuple(name for name in carried if name in OF_NEXT)
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
        self._rings: dict[str, Array] = {}  # [n, E, ...] of obs, actions and what rides along, made at the first push from what it brings
        self._rewards = np.zeros((n_step, num_envs))

    @property
    def num_open(self) -> int:
        """Steps that are in no transition yet."""
        return int(self._counts.sum())

    def push(self, step: Step | None = None, **fields: Any) -> Items:
        """One step of every environment: a `Step`, or its fields by name.

        Returns the transitions now ready, by environment, then time: `obs, actions, rewards, next_obs, dones, discounts` (float32),
        and what is carried, possibly none. What they hold may be shared, or the very arrays given here: copy it before the next step,
        never write to it.
        """
        if step is None:
            step = Step(**fields)
        terminated, valid = step.terminated, step.valid
        if step.lost_life is not None:
            terminated = np.asarray(terminated, bool) | step.lost_life
        if valid is not None and np.count_nonzero(valid) == self.num_envs:
            valid = None
        if self.n_step == 1:
            return self._one_step(step, terminated, valid)
        rings = self._rings or self._make_rings(step)
        self._clock += 1
        newest = self._clock % self.n_step
        if valid is not None:
            self._keep_in_step(np.flatnonzero(~np.asarray(valid, bool)))
            rows = np.flatnonzero(valid)
            rings["obs"][newest, rows], rings["actions"][newest, rows] = step.obs[rows], step.actions[rows]
            self._rewards[newest, rows] = np.asarray(step.rewards)[rows]
            for name in self._of_first:
                rings[name][newest, rows] = carried_field(step, name)[rows]
            self._counts[rows] += 1
        else:
            rings["obs"][newest], rings["actions"][newest], self._rewards[newest] = step.obs, step.actions, step.rewards
            for name in self._of_first:
                rings[name][newest] = carried_field(step, name)
            if self._all_full and not np.count_nonzero(terminated) and not np.count_nonzero(step.truncated):
                oldest = (newest + 1) % self.n_step
                items = {
                    "obs": rings["obs"][oldest].copy(),
                    "actions": rings["actions"][oldest].copy(),
                    "rewards": (self._slot_powers[newest] @ self._rewards).astype(np.float32),
                    "next_obs": step.next_obs,
                    "dones": self._no_dones,
                    "discounts": self._full_discount,
                }
                if self._carried:
                    items |= {name: rings[name][oldest].copy() for name in self._of_first}
                    items |= {name: carried_field(step, name) for name in self._of_next}
                return items
            self._counts += 1
        return self._emit(newest, step, np.asarray(terminated, bool), valid)

    def _one_step(self, step: Step, terminated: Array, valid: Array | None) -> Items:
        dones, discounts = self._no_dones, self._full_discount
        if np.count_nonzero(terminated):
            dones = np.asarray(terminated, np.float32)
            discounts = discounts * (1.0 - dones)
        items = {
            "obs": step.obs,
            "actions": step.actions,
            "rewards": np.asarray(step.rewards, np.float32),
            "next_obs": step.next_obs,
            "dones": dones,
            "discounts": discounts,
        }
        for name in self._carried:
            items[name] = carried_field(step, name)
        if valid is None:
            return items
        rows = np.flatnonzero(valid)
        return {name: value[rows] for name, value in items.items()}

    def _make_rings(self, step: Step) -> dict[str, Array]:
        first = {"obs": step.obs, "actions": step.actions, **{name: carried_field(step, name) for name in self._of_first}}
        self._rings = {name: np.zeros((self.n_step, *value.shape), value.dtype) for name, value in first.items()}
        return self._rings

    def _keep_in_step(self, idle: Array) -> None:
        """Environments that made no step: move their open windows on by one slot, so that the shared clock still fits them."""
        for env in idle[self._counts[idle] > 0]:
            for ring in (*self._rings.values(), self._rewards):
                ring[:, env] = np.roll(ring[:, env], 1, axis=0)

    def _emit(self, newest: int, step: Step, terminated: Array, valid: Array | None) -> Items:
        n, counts = self.n_step, self._counts
        ended = terminated | np.asarray(step.truncated, bool)
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
            **{name: ring[first, env] for name, ring in self._rings.items()},
            "rewards": returns.astype(np.float32),
            "next_obs": step.next_obs[env],
            "dones": dones,
            "discounts": (self._powers[steps] * (1.0 - dones)).astype(np.float32),
            **{name: carried_field(step, name)[env] for name in self._of_next},
        }

    def drop(self, env_indices: Any) -> None:
        """Forget the open windows of these environments, whose episodes cannot go on."""
        self._counts[env_indices] = 0
        self._all_full = False

    def state_dict(self) -> State:
        rings = {name: ring.copy() for name, ring in self._rings.items()}
        return {"clock": self._clock, "counts": self._counts.copy(), "rewards": self._rewards.copy(), "rings": rings}

    def load_state_dict(self, state: State) -> None:
        rewards = as_array(state["rewards"]).astype(np.float64)
        if rewards.shape != self._rewards.shape:
            raise ValueError(f"saved windows have shape {rewards.shape}, expected {self._rewards.shape} (n_step, num_envs)")
        counts = as_array(state["counts"]).astype(np.int64)
        if counts.shape != self._counts.shape or (counts < 0).any() or (counts >= self.n_step).any():
            raise ValueError(f"saved windows must hold 0 … {self.n_step - 1} steps for each of {self.num_envs} environments")
        rings = {name: as_array(ring).copy() for name, ring in state["rings"].items()}
        expected = {"obs", "actions", *self._of_first}
        if rings and rings.keys() != expected:
            raise ValueError(f"saved windows hold {', '.join(sorted(rings))}; expected {', '.join(sorted(expected))}")
        if any(ring.shape[:2] != rewards.shape for ring in rings.values()):
            raise ValueError(f"saved windows hold rings of other lengths than {rewards.shape} (n_step, num_envs)")
        self._clock, self._counts, self._rewards = int(state["clock"]), counts, rewards
        self._all_full = bool((self._counts == self.n_step - 1).all())
        self._rings = rings


def carried_field(step: Step, name: str) -> Array:
    """What rides along under this name; a step that should bring it and does not is said."""
    value: Array | None = getattr(step, name)
    if value is None:
        raise ValueError(f"{name} was declared to ride along, but the step has none")
    return value
