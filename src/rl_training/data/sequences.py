"""Chunks of episodes, assembled step by step for every environment at once.

A chunk has L slots, `burn_in` of them (b) a prefix that only warms the recurrent state up; it never crosses an episode. The chunks of one
episode, in steps since its start (trained steps in brackets, T = L − b):

    first    b empty slots, then [0, T)                  trained from the episode's first state: a burn-in costs no step
    then     b real steps,  then [s, s + T)              s = stride, 2·stride, …;  stride = L − max(overlap, b) ≤ T, so nothing is left out
    last     all that have begun and train a step, padded on the right

So `overlap` is the number of slots two neighbours share, and at least the burn-in: with overlap ≤ b the trained parts tile the episode,
above it they overlap by `overlap − b`. Then several chunks are open when an episode ends, and each of them is kept: with one alone the
last steps, the only ones that end, would be replayed several times less often than those in the middle.

Where stride < b ≤ T the second chunk starts at the episode's start (s = b) rather than before it. Only where b > T are there chunks whose
prefix is partly empty: the episode then starts inside it, as `start_slot` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.data.storage import as_array

if TYPE_CHECKING:
    from rl_training.types import Array, State


@dataclass(frozen=True)
class ChunkLayout:
    """Where chunks begin (see the module's text)."""

    length: int
    burn_in: int = 0
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.burn_in < 0 or self.length <= self.burn_in:
            raise ValueError(f"sequence_length must be > burn_in >= 0, got {self.length} and {self.burn_in}")
        if not 0 <= self.overlap < self.length:
            raise ValueError(f"sequence_overlap must lie in 0 … sequence_length - 1, got {self.overlap} and {self.length}")

    @property
    def stride(self) -> int:
        return self.length - max(self.overlap, self.burn_in)

    @property
    def second(self) -> int:
        """From the first, left-padded chunk of an episode to the next one."""
        return max(self.stride, self.burn_in) if self.burn_in <= self.length - self.burn_in else self.stride


class ChunkAssembler:
    """The open chunk of each of E environments, in slots of its own: `obs` [E, L + 1, ...], `actions` and `rewards` [E, L, ...].

    Later chunks that overlap it are its last slots, moved to the front when it closes. Their recurrent states are read when their first
    step is seen, at no other step: `states` [E, K, 2, layers, H], the open chunk's first.
    """

    _STATE = ("obs", "actions", "rewards", "states", "slot", "begin", "shift", "next_start", "recorded", "active", "started")

    def __init__(
        self,
        layout: ChunkLayout,
        num_envs: int,
        *,
        obs_shape: tuple[int, ...],
        obs_dtype: np.dtype[Any],
        action_shape: tuple[int, ...],
        action_dtype: np.dtype[Any],
        state_shape: tuple[int, int],
    ) -> None:
        self.layout, self.num_envs = layout, num_envs
        length = layout.length
        self.obs = np.zeros((num_envs, length + 1, *obs_shape), obs_dtype)
        self.actions = np.zeros((num_envs, length, *action_shape), action_dtype)
        self.rewards = np.zeros((num_envs, length), np.float32)
        self.states = np.zeros((num_envs, length // layout.stride + 2, 2, *state_shape), np.float32)
        self.slot = np.zeros(num_envs, np.int64)  # where the next step goes
        self.begin = np.zeros(num_envs, np.int64)  # empty slots on the left
        self.shift = np.zeros(num_envs, np.int64)  # from the open chunk to the next
        self.next_start = np.zeros(num_envs, np.int64)  # first slot of the next chunk whose state is not recorded yet
        self.recorded = np.zeros(num_envs, np.int64)  # states held
        self.active = np.zeros(num_envs, bool)
        self.started = np.zeros(num_envs, bool)  # the episode's first step is in slot `begin`

    @property
    def num_steps(self) -> int:
        """Steps in open chunks."""
        return int((self.slot - self.begin)[self.active].sum())

    def push(
        self,
        envs: Array,
        *,
        obs: Array,
        actions: Array,
        rewards: Array,
        next_obs: Array,
        terminated: Array,
        truncated: Array,
        episode_starts: Array,
        initial_state: tuple[Any, Any],
    ) -> list[dict[str, Array]]:
        """One step of the environments `envs` [M] (arrays [M, ...]; the states [layers, M, H]). Returns the chunks that closed."""
        closed: list[dict[str, Array]] = []
        opening = episode_starts | ~self.active[envs]
        if opening.any():
            unfinished = envs[opening & self.active[envs]]
            if len(unfinished):  # an episode starts though the last one was never ended: as if truncated
                closed += self.end(unfinished)
            self._open(envs[opening], episode_starts[opening])
        slot = self.slot[envs]
        self._record_states(envs, slot, initial_state)
        self.obs[envs, slot] = obs
        self.obs[envs, slot + 1] = next_obs
        self.actions[envs, slot] = actions
        self.rewards[envs, slot] = rewards
        self.slot[envs] = slot + 1
        ended = terminated | truncated
        closing = ended | (slot + 1 == self.layout.length)
        if closing.any():
            closed += self._close(envs[closing], terminated[closing], ended[closing])
        return closed

    def _open(self, envs: Array, episode_starts: Array) -> None:
        layout = self.layout
        # what begins inside an episode has a state to warm up, so its first steps are the burn-in
        self.slot[envs] = self.begin[envs] = np.where(episode_starts, layout.burn_in, 0)
        self.shift[envs] = np.where(episode_starts, layout.second, layout.stride)
        self.next_start[envs] = self.recorded[envs] = 0
        self.active[envs] = True
        self.started[envs] = episode_starts
        for values in (self.obs, self.actions, self.rewards):
            values[envs] = 0

    def _record_states(self, envs: Array, slot: Array, initial_state: tuple[Any, Any]) -> None:
        """Chunks that begin with this step, or before their episode's first one, start from the state before it."""
        host: Array | None = None
        while True:
            due = np.flatnonzero(slot == np.maximum(self.next_start[envs], self.begin[envs]))
            if not len(due):
                return
            if host is None:
                host = np.stack([as_array(part) for part in initial_state])  # [2, layers, M, H]
            rows = envs[due]
            count = self.recorded[rows]
            self.states[rows, count] = host[:, :, due].transpose(2, 0, 1, 3)
            self.recorded[rows] = count + 1
            # the chunk after the open one is `shift` on, every later one a stride
            self.next_start[rows] += np.where(count == 0, self.shift[rows], self.layout.stride)

    def _close(self, envs: Array, terminated: Array, ended: Array) -> list[dict[str, Array]]:
        """Take the open chunks of `envs` out and go on with the next ones; where the episode ended, take those that have begun too."""
        closed, burn_in = [], self.layout.burn_in
        self.active[envs[ended]] = False
        while len(envs):
            trains = self.slot[envs] > burn_in
            if trains.any():
                closed.append(self._take(envs[trains], terminated[trains]))
            for env in envs:
                self._advance(env)
            more = ended & (self.slot[envs] > burn_in)
            envs, terminated, ended = envs[more], terminated[more], ended[more]
        return closed

    def _take(self, rows: Array, terminated: Array) -> dict[str, Array]:
        end, begin = self.slot[rows], self.begin[rows]
        chunks = {
            "obs": self.obs[rows],
            "actions": self.actions[rows],
            "rewards": self.rewards[rows],
            "initial_state": self.states[rows, 0],
            "begin": begin,
            "end": end,
            "done_slot": np.where(terminated, end - 1, -1),
            "start_slot": np.where(self.started[rows], begin, -1),
        }
        for row, stop in enumerate(end):  # what an earlier chunk left behind the last step
            chunks["obs"][row, stop + 1 :] = 0
            chunks["actions"][row, stop:] = 0
            chunks["rewards"][row, stop:] = 0
        return chunks

    def _advance(self, env: int) -> None:
        """The next chunk becomes the open one."""
        shift = int(self.shift[env])
        for values in (self.obs, self.actions, self.rewards):
            values[env, :-shift] = values[env, shift:]
        self.states[env, :-1] = self.states[env, 1:]
        self.recorded[env] = max(0, self.recorded[env] - 1)
        self.next_start[env] -= shift
        self.slot[env] -= shift
        self.started[env] &= self.begin[env] >= shift
        self.begin[env] = max(0, self.begin[env] - shift)
        self.shift[env] = self.layout.stride

    def end(self, envs: Array) -> list[dict[str, Array]]:
        """These episodes cannot go on: their open chunks close as at a time limit."""
        envs = envs[self.active[envs]]
        return self._close(envs, np.zeros(len(envs), bool), np.ones(len(envs), bool))

    def clear(self, env_indices: Any = None) -> None:
        """Forget the open chunks (of these environments, or all)."""
        self.active[slice(None) if env_indices is None else env_indices] = False

    def state_dict(self) -> State:
        return {name: getattr(self, name).copy() for name in self._STATE}

    def load_state_dict(self, state: State) -> None:
        for name in self._STATE:
            mine, saved = getattr(self, name), as_array(state[name])
            if saved.shape != mine.shape:
                raise ValueError(f"saved open chunks: {name} is {saved.shape}, expected {mine.shape}")
            mine[...] = saved
