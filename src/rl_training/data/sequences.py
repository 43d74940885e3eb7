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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rl_training.data.n_step import carried_field
from rl_training.data.storage import Field, as_array, numpy_dtype
from rl_training.types import Step

if TYPE_CHECKING:
    from rl_training.types import Array, Items, State


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
    """The open chunk of each of E environments, in slots of its own: `obs` [E, L + 1, ...]; `actions`, `rewards`, `dones` and what else
    is carried [E, L, ...].

    Later chunks that overlap it are its last slots, moved to the front when it closes. Their recurrent states are read when their first
    step is seen, at no other step: `states` [E, K, parts, layers, H], the open chunk's first.

    A lost life is a `dones` of 1 and nothing else: chunk and recurrent state go on. carried: fields of `Step` that come out with the
    chunks, a value for each slot; `priorities` alone come out as one for each chunk, η·max + (1 − η)·mean over its trained steps.
    """

    _STATE = ("states", "slot", "begin", "shift", "next_start", "recorded", "active", "started")

    def __init__(
        self,
        layout: ChunkLayout,
        num_envs: int,
        *,
        obs: Field,
        actions: Field,
        state_shape: tuple[int, int, int],
        carried: Mapping[str, Field] | None = None,
        priority_eta: float = 0.9,
    ) -> None:
        """obs, actions, carried: of one step. state_shape: parts (an LSTM's h and c are two), layers, hidden size."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.layout, self.num_envs, self._eta = layout, num_envs, priority_eta
        length = layout.length
        self.carried = tuple(carried or ())
        fields = {"actions": actions, "rewards": Field((), torch.float32), "dones": Field((), torch.uint8), **(carried or {})}
        self.slots = {name: np.zeros((num_envs, length, *field.shape), numpy_dtype(field.dtype)) for name, field in fields.items()}
        self.slots["obs"] = np.zeros((num_envs, length + 1, *obs.shape), numpy_dtype(obs.dtype))
        self.states = np.zeros((num_envs, length // layout.stride + 2, *state_shape), np.float32)
        self.slot = np.zeros(num_envs, np.int64)  # where the next step goes
        self.begin = np.zeros(num_envs, np.int64)  # empty slots on the left
        self.shift = np.zeros(num_envs, np.int64)  # from the open chunk to the next
        self.next_start = np.zeros(num_envs, np.int64)  # first slot of the next chunk whose state is not recorded yet
        self.recorded = np.zeros(num_envs, np.int64)  # states held
        self.active = np.zeros(num_envs, bool)
        self.started = np.zeros(num_envs, bool)  # the episode's first step is in slot `begin`
        self._all = np.arange(num_envs)

    @property
    def num_open(self) -> int:
        """Steps in open chunks."""
        return int((self.slot - self.begin)[self.active].sum())

    def push(self, step: Step, envs: Array | None = None) -> Items:
        """One step of the environments `envs` [M] (all, unless given), arrays [M, ...]. Returns the chunks that closed; {}: none did."""
        envs = self._all if envs is None else envs
        if step.valid is not None and np.count_nonzero(step.valid) < len(envs):
            rows = np.flatnonzero(step.valid)
            if not len(rows):
                return {}
            envs, step = envs[rows], rows_of(step, rows)
        if step.episode_starts is None:
            raise ValueError("chunks need to know where episodes start: the step has no episode_starts")
        closed: list[Items] = []
        opening = step.episode_starts | ~self.active[envs]
        if opening.any():
            unfinished = envs[opening & self.active[envs]]
            if len(unfinished):  # an episode starts though the last one was never ended: as if truncated
                closed += self._close(unfinished, np.ones(len(unfinished), bool))
            self._open(envs[opening], step.episode_starts[opening])
        slot = self.slot[envs]
        self._record_states(envs, slot, step.initial_state)
        slots = self.slots
        slots["obs"][envs, slot] = step.obs
        slots["obs"][envs, slot + 1] = step.next_obs
        slots["actions"][envs, slot] = step.actions
        slots["rewards"][envs, slot] = step.rewards
        slots["dones"][envs, slot] = step.terminated if step.lost_life is None else step.terminated | step.lost_life
        for name in self.carried:
            slots[name][envs, slot] = carried_field(step, name)
        self.slot[envs] = slot + 1
        ended = step.terminated | step.truncated
        closing = ended | (slot + 1 == self.layout.length)
        if closing.any():
            closed += self._close(envs[closing], ended[closing])
        return joined(closed)

    def _open(self, envs: Array, episode_starts: Array) -> None:
        layout = self.layout
        # what begins inside an episode has a state to warm up, so its first steps are the burn-in
        self.slot[envs] = self.begin[envs] = np.where(episode_starts, layout.burn_in, 0)
        self.shift[envs] = np.where(episode_starts, layout.second, layout.stride)
        self.next_start[envs] = self.recorded[envs] = 0
        self.active[envs] = True
        self.started[envs] = episode_starts
        for values in self.slots.values():
            values[envs] = 0

    def _record_states(self, envs: Array, slot: Array, initial_state: Sequence[Any]) -> None:
        """Chunks that begin with this step, or before their episode's first one, start from the state before it."""
        host: Array | None = None
        while True:
            due = np.flatnonzero(slot == np.maximum(self.next_start[envs], self.begin[envs]))
            if not len(due):
                return
            if host is None:
                host = np.stack([as_array(part) for part in initial_state])  # [parts, layers, M, H]
            rows = envs[due]
            count = self.recorded[rows]
            self.states[rows, count] = host[:, :, due].transpose(2, 0, 1, 3)
            self.recorded[rows] = count + 1
            # the chunk after the open one is `shift` on, every later one a stride
            self.next_start[rows] += np.where(count == 0, self.shift[rows], self.layout.stride)

    def _close(self, envs: Array, ended: Array) -> list[Items]:
        """Take the open chunks of `envs` out and go on with the next ones; where the episode ended, take those that have begun too."""
        closed, burn_in = [], self.layout.burn_in
        self.active[envs[ended]] = False
        while len(envs):
            trains = self.slot[envs] > burn_in
            if trains.any():
                closed.append(self._take(envs[trains]))
            for env in envs:
                self._advance(env)
            more = ended & (self.slot[envs] > burn_in)
            envs, ended = envs[more], ended[more]
        return closed

    def _take(self, rows: Array) -> Items:
        end, begin = self.slot[rows], self.begin[rows]
        chunks = {name: values[rows] for name, values in self.slots.items()}
        for name, values in chunks.items():
            for row, stop in enumerate(end + (name == "obs")):  # what an earlier chunk left behind the last step
                values[row, stop:] = 0
        if "priorities" in chunks:
            time = np.arange(self.layout.length)
            trained = (time >= np.maximum(begin, self.layout.burn_in)[:, None]) & (time < end[:, None])
            of_steps = np.where(trained, np.abs(chunks["priorities"]), 0.0)
            chunks["priorities"] = self._eta * of_steps.max(1) + (1 - self._eta) * of_steps.sum(1) / trained.sum(1)
        chunks["initial_state"] = self.states[rows, 0]
        chunks["begin"], chunks["end"] = begin, end
        chunks["start_slot"] = np.where(self.started[rows], begin, -1)
        return chunks

    def _advance(self, env: int) -> None:
        """The next chunk becomes the open one."""
        shift = int(self.shift[env])
        for values in self.slots.values():
            values[env, :-shift] = values[env, shift:]
        self.states[env, :-1] = self.states[env, 1:]
        self.recorded[env] = max(0, self.recorded[env] - 1)
        self.next_start[env] -= shift
        self.slot[env] -= shift
        self.started[env] &= self.begin[env] >= shift
        self.begin[env] = max(0, self.begin[env] - shift)
        self.shift[env] = self.layout.stride

    def drop(self, env_indices: Any) -> Items:
        """These episodes cannot go on: their open chunks close as at a time limit, and come out."""
        envs = as_array(env_indices)
        envs = envs[self.active[envs]]
        return joined(self._close(envs, np.ones(len(envs), bool)))

    def clear(self, env_indices: Any = None) -> None:
        """Forget the open chunks (of these environments, or all)."""
        self.active[slice(None) if env_indices is None else env_indices] = False

    def state_dict(self) -> State:
        return {"slots": {name: values.copy() for name, values in self.slots.items()}} | {
            name: getattr(self, name).copy() for name in self._STATE
        }

    def load_state_dict(self, state: State) -> None:
        mine = self.slots | {name: getattr(self, name) for name in self._STATE}
        saved = {name: as_array(value) for name, value in {**state, **state["slots"]}.items() if name != "slots"}
        if saved.keys() != mine.keys():
            raise ValueError(f"saved open chunks hold {', '.join(sorted(saved))}; expected {', '.join(sorted(mine))}")
        for name, values in mine.items():
            if saved[name].shape != values.shape:
                raise ValueError(f"saved open chunks: {name} is {saved[name].shape}, expected {values.shape}")
        # Chunks that never move on would be taken for ever.
        length, (slot, begin, shift) = self.layout.length, (saved[name] for name in ("slot", "begin", "shift"))
        moves = (begin >= 0) & (begin <= slot) & (slot < length) & (shift >= 1) & (shift <= length)
        if not moves[saved["active"].astype(bool)].all():
            raise ValueError("saved open chunks: slot, begin and shift are not where a chunk can be")
        for name, values in mine.items():
            values[...] = saved[name]


def rows_of(step: Step, rows: Array) -> Step:
    """A step of these environments alone."""
    given = {field.name: getattr(step, field.name) for field in fields(step)}
    taken = {name: value[rows] for name, value in given.items() if value is not None and name not in ("valid", "initial_state")}
    return Step(**taken, initial_state=tuple(part[:, rows] for part in step.initial_state))


def joined(items: Sequence[Items]) -> Items:
    """All of them as one, in their order; {}: there are none."""
    if len(items) < 2:
        return items[0] if items else {}
    return {name: np.concatenate([some[name] for some in items]) for name in items[0]}
