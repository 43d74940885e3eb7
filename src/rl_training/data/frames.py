"""Frames stored once: what is on its way to a replay names frames by id, and a batch gets the stacks they stand for.

A stacked observation of K frames shares K − 1 of them with the one before it, and a transition's `next_obs` is a later one's `obs`. So
each frame is stored once, at the moment it is new. Ids grow for ever from 1; id 0 is a frame of zeros, as it stands before an episode's
start. An observation is named by the id of its newest frame: which older ones belong to it is remembered with that frame.

    FrameNumbers  in the feed: gives each new frame its id, and puts ids in the place of a `Step`'s observations
    FrameStore    in a replay: a ring of frames; stacks are gathered on the device it lives on, with fixed shapes, without asking the host

Where several feeds fill one store, each numbers its own frames, and `FrameStreams` (frame_streams.py) stands between them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.data import storage
from rl_training.data.storage import Field, Staging, as_array, numpy_dtype

if TYPE_CHECKING:
    from rl_training.types import Array, Items, State, Step

FRAMES, STACKS = "frames", "frame_stacks"
"""What items bring beside their fields: frames [M, ...] that were not sent before, and the ids [M, K] of the stack each is the newest of,
oldest first (0: before the episode's start). Their own ids are the last column, one after the other."""

NO_FRAME = 0
GONE = -1  # in the place of an id: a frame that is not held any more
_NEVER = np.iinfo(np.int64).max


SHORT = 64
"""Steps of an episode below which, on average, its first frame costs the oldest items their places early."""


class FrameLayout(NamedTuple):
    """An observation is `stack` frames, oldest first, along its first axis: [K·C, H, W], or any one frame with a stack of 1.

    spare: frames to hold beside those of finished items, such as those of windows that are still open.
    """

    stack: int = 1
    spare: int = 0

    def capacity(self, steps: int) -> int:
        """Frames to hold for so many steps: one each, one for each episode's start, and those of stacks that reach further back."""
        return steps + steps // SHORT + self.stack + self.spare


class FrameNumbers:
    """Gives every frame of E environments its id, once: an episode's first observation, and whatever a step led to.

    The next step's `obs` is the same frame as this step's `next_obs`, so it gets no other one. A reset step brings no frame.
    """

    def __init__(self, stack: int, num_envs: int) -> None:
        self.stack, self.num_envs = stack, num_envs
        self._next = NO_FRAME + 1
        self._stacks = np.zeros((num_envs, stack), np.int64)  # ids of each environment's current observation, oldest first
        self._new: list[tuple[Array, Array]] = []  # frames that nobody has taken yet, and their stacks
        self.num_new = 0  # how many those are

    def number(self, step: Step) -> Step:
        """Puts ids [E] in the place of the step's `obs` and `next_obs`; the step itself comes back."""
        if step.episode_starts is None:
            raise ValueError("frames need to know where episodes start: the step has no episode_starts")
        stacks, valid = self._stacks, step.valid
        begins = step.episode_starts | (stacks[:, -1] == NO_FRAME)
        if valid is not None:
            begins &= valid
        if np.count_nonzero(begins):
            stacks[begins] = NO_FRAME
            self._give(begins, step.obs)
        obs = stacks[:, -1].copy()
        if self.stack > 1:
            stacks[:, :-1] = stacks[:, 1:]
        self._give(valid, step.next_obs)
        if valid is not None:
            stacks[~valid] = NO_FRAME  # a reset step: what follows begins an episode
        step.obs, step.next_obs = obs, stacks[:, -1].copy()
        return step

    def _give(self, envs: Array | None, observations: Array) -> None:
        """New ids for the newest frames of these environments' observations [E, ...]; None: of all."""
        # Of all as they are: arrays of a step are never written to again (see envs/vector.py).
        newest = observations.reshape(self.num_envs, self.stack, -1)[:, -1]
        count = self.num_envs if envs is None else int(np.count_nonzero(envs))
        ids = np.arange(self._next, self._next + count)
        self._next += count
        self.num_new += count
        if envs is None:
            self._stacks[:, -1] = ids
            self._new.append((newest, self._stacks.copy()))
        elif count:
            self._stacks[envs, -1] = ids
            self._new.append((newest[envs], self._stacks[envs]))

    def take(self) -> Items:
        """The frames that are new since the last time, to go with the items that name them; {}: there are none."""
        if not self._new:
            return {}
        frames, stacks = ([each[part] for each in self._new] for part in (0, 1))
        self._new, self.num_new = [], 0
        return {FRAMES: frames[0] if len(frames) == 1 else np.concatenate(frames), STACKS: np.concatenate(stacks)}

    def drop(self, env_indices: Any) -> None:
        """These episodes cannot go on: what comes next begins one."""
        self._stacks[env_indices] = NO_FRAME

    def state_dict(self) -> State:
        """Without the frames that nobody has taken: take them first."""
        return {"next": self._next, "stacks": self._stacks.copy()}

    def load_state_dict(self, state: State) -> None:
        stacks, upcoming = as_array(state["stacks"]), int(state["next"])
        if stacks.shape != self._stacks.shape or not 1 <= upcoming < 2**62 or (stacks < 0).any() or (stacks >= upcoming).any():
            raise ValueError(f"saved frame numbers are not those of {self.num_envs} stacks of {self.stack}")
        self._next, self._stacks, self._new = upcoming, stacks.astype(np.int64), []
        self.num_new = 0


class FrameStore:
    """The newest `capacity` frames, each in a row of whole 8-byte words, as wide as they are fast to copy.

    Row 0 is the frame of zeros; the frame with id i has row 1 + (i − base) mod capacity, `base` being the first id it was given.
    `_stacks` [rows, K] has the rows of the stack that a frame is the newest of, `_oldest` [rows] the oldest id in that stack.
    On the CPU all is NumPy memory; elsewhere tensors, and frames come through page-locked staging.
    """

    def __init__(self, capacity: int, obs: Field, stack: int, device: torch.device) -> None:
        self.capacity, self.obs, self.stack, self.device = capacity, obs, stack, device
        self._elements = math.prod(obs.shape) // stack
        self._numpy_dtype = numpy_dtype(obs.dtype)
        words = self.words_of(obs, stack)
        self._on_cpu = storage.uses_numpy(device)
        self._frames, self._stacks = (self._zeros(width) for width in (words, stack))
        self._oldest = np.zeros(capacity + 1, np.int64)
        self._oldest[0] = _NEVER
        self.base = self.next = NO_FRAME + 1
        self.page_locked = False  # whether stacks gathered on the host lie in page-locked memory
        self._staging = None if self._on_cpu else (Staging(words, device), Staging(stack, device))

    def _zeros(self, width: int) -> Tensor:
        shape = (self.capacity + 1, width)
        return torch.from_numpy(np.zeros(shape, np.int64)) if self._on_cpu else torch.zeros(shape, dtype=torch.int64, device=self.device)

    @staticmethod
    def words_of(obs: Field, stack: int) -> int:
        """Of one frame."""
        if stack < 1 or not obs.shape or obs.shape[0] % stack:
            raise ValueError(f"an observation of shape {obs.shape} is not {stack} frames along its first axis")
        return -(-math.prod(obs.shape) // stack * obs.dtype.itemsize // 8)

    @staticmethod
    def bytes_of(capacity: int, obs: Field, stack: int) -> int:
        """What so many frames take, with the ids beside them."""
        return (capacity + 1) * 8 * (FrameStore.words_of(obs, stack) + stack + 1)

    @property
    def nbytes(self) -> int:
        return self.bytes_of(self.capacity, self.obs, self.stack)

    @property
    def first(self) -> int:
        """The oldest id that is held."""
        return max(self.base, self.next - self.capacity)

    def first_after(self, stacks: Array) -> int:
        """`first` as it will be when frames with these stacks [M, K] have been added."""
        begin, end = int(stacks[0, -1]), int(stacks[-1, -1]) + 1
        if end - begin != len(stacks) or (np.diff(stacks[:, -1]) != 1).any():
            raise ValueError("frames must come with ids one after the other")
        return max(self.base if begin == self.next else begin, end - self.capacity)

    def add(self, frames: Array, stacks: Array) -> None:
        """Frames [M, ...] with their stacks' ids [M, K]. If their ids do not follow the newest one, all older frames are gone."""
        self.first_after(stacks)  # checks them
        if int(stacks[0, -1]) != self.next:
            self.base = int(stacks[0, -1])
        self.next = int(stacks[-1, -1]) + 1
        frames, stacks = frames[-self.capacity :].reshape(-1, self._elements), stacks[-self.capacity :]
        oldest = np.where(stacks != NO_FRAME, stacks, _NEVER).min(1)
        rows = self.rows_of(stacks)
        start, count = int(rows[0, -1]), len(rows)
        head = min(count, self.capacity + 1 - start)
        self._write(frames[:head], rows[:head], oldest[:head], start)
        if head < count:
            self._write(frames[head:], rows[head:], oldest[head:], 1)

    def _write(self, frames: Array, rows: Array, oldest: Array, start: int) -> None:
        stop = start + len(rows)
        self._oldest[start:stop] = oldest
        if self._staging is None:
            self._frames.numpy()[start:stop].view(self._numpy_dtype)[:, : self._elements] = frames
            self._stacks.numpy()[start:stop] = rows
            return
        pixels, ids = self._staging
        taken, also = pixels.reserve(len(rows)), ids.reserve(len(rows))
        pixels.rows.numpy()[taken].view(self._numpy_dtype)[:, : self._elements] = frames
        ids.rows.numpy()[also] = rows
        self._frames[start:stop].copy_(pixels.rows[taken], non_blocking=True)
        self._stacks[start:stop].copy_(ids.rows[also], non_blocking=True)

    def rows_of(self, ids: Array) -> Array:
        """The rows of the frames with these ids; of frames that are gone, some row."""
        rows: Array = np.where(ids != NO_FRAME, 1 + (ids - self.base) % self.capacity, 0)
        return rows

    def oldest_of(self, ids: Array) -> Array:
        """The oldest ids [N] that observations need whose newest frames are these [N] or [N, T]: 0 where one of them is gone."""
        if ids.size and int(ids.max()) >= self.next:
            raise ValueError(f"items name the frame {int(ids.max())}, and the newest one is {self.next - 1}")
        flat = ids if ids.ndim == 2 else ids[:, None]
        earliest = np.where(flat != NO_FRAME, flat, _NEVER).min(1)
        held = earliest >= self.first
        oldest: Array = np.where(held, self._oldest[self.rows_of(np.where(held & (earliest < _NEVER), earliest, NO_FRAME))], 0)
        return oldest

    def stacks(self, rows: Tensor) -> Tensor:
        """Observations [..., *obs] whose newest frames lie in these rows [...]."""
        shape = (*rows.shape, *self.obs.shape)
        if self._on_cpu:
            host = self._stacks.numpy().take(rows.numpy().reshape(-1), 0)
            flat = host.reshape(-1)
            taken = torch.empty((len(flat), self._frames.shape[1]), dtype=torch.int64, pin_memory=self.page_locked)
            self._frames.numpy().take(flat, 0, out=taken.numpy(), mode="clip")  # straight into it; rows are always in range
            return taken.view(self.obs.dtype)[:, : self._elements].reshape(shape)
        of_stacks = self._stacks.index_select(0, rows.reshape(-1))
        return self._frames.index_select(0, of_stacks.view(-1)).view(self.obs.dtype)[:, : self._elements].reshape(shape)

    def _parts(self) -> dict[str, Tensor]:
        return {"rows": self._frames, "stacks": self._stacks, "oldest": torch.from_numpy(self._oldest)}

    def _used(self) -> int:
        """Rows in use, the frame of zeros among them."""
        return 1 + min(self.next - self.base, self.capacity)

    def state_dict(self, *, copy: bool = True) -> State:
        """The rows in use. With `copy=False` they share the store's memory: for a reader that is done before the next `add`."""
        used = self._used()
        parts = {name: part[:used] for name, part in self._parts().items()}
        how = {"capacity": self.capacity, "stack": self.stack, "base": self.base, "next": self.next}
        return how | {name: part.clone() if copy else part for name, part in parts.items()}

    def load_state_dict(self, state: State) -> None:
        for name, mine in (("capacity", self.capacity), ("stack", self.stack)):
            if state[name] != mine:
                raise ValueError(f"the {name} of the saved frames is {state[name]!r:.20}, expected {mine}")
        base, upcoming = int(state["base"]), int(state["next"])
        if not 1 <= base <= upcoming < 2**62:
            raise ValueError(f"saved frames are numbered from {base} to {upcoming}")
        used = 1 + min(upcoming - base, self.capacity)
        parts = self._parts()
        given = {name: torch.as_tensor(state[name]) for name in parts}
        for name, part in parts.items():
            if given[name].shape != (used, *part.shape[1:]) or given[name].dtype != torch.int64:
                raise ValueError(f"saved frames: {name} is {tuple(given[name].shape)}, expected {(used, *part.shape[1:])} of int64")
        require_rows(given["stacks"], self.capacity)
        for name, part in parts.items():
            part[:used].copy_(given[name])
        self._frames[0].zero_()
        self.base, self.next = base, upcoming


def require_rows(rows: Tensor, capacity: int) -> None:
    """Raises ValueError unless these are rows of a store of so many frames: a gather does not look."""
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) <= capacity:
        raise ValueError(f"saved items name frames beyond the {capacity:,} there are")
