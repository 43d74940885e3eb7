"""Replay of sequences for recurrent Q-learning (arXiv:1507.06527; R2D2, Kapturowski et al., ICLR 2019, §2.3 and §3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rl_training.data.framed_ring import NAMES_FRAMES, ROW, FramedRing
from rl_training.data.frames import FrameLayout
from rl_training.data.sampled_ring import Priorities, SampledBuffer, SampledRing
from rl_training.data.sequences import ChunkAssembler, ChunkLayout
from rl_training.data.storage import Field, as_array, as_torch_dtype
from rl_training.types import STATE_NAMES, Step

if TYPE_CHECKING:
    from rl_training.types import Batch, Items, State


class RecurrentReplayBuffer(SampledBuffer):
    """Ring of chunks of `sequence_length` steps (L) that never cross an episode, each with the recurrent state at its start.

    `capacity` counts transitions: `capacity // L` chunks are held. How chunks are laid out over an episode, with `burn_in` (a part of L)
    and `sequence_overlap`, is described in sequences.py. A chunk stores its L + 1 observations once, actions, rewards and dones (a byte),
    the state (`state_parts` · layers · hidden float32; an LSTM's h and c are two parts, a GRU has h alone) and three int64 that `mask` and
    `episode_starts` are made from when it is sampled:

        bytes per transition = ((L + 1)·obs + L·(action + 5) + 4·parts·layers·hidden + 24, in whole words) / L      (+ 8 / L for a priority)

    Chunks come finished (`add_items`), made by a `ChunkAssembler` such as `make_assembler` gives; `add` has one of its own.
    extra: further fields of a step, stored and sampled under their names (see `Step`).

    frames: an observation is a stack of frames, each of which is stored once (frames.py), so chunks that overlap share theirs. They name
    them by their ids and bring those that are new; a batch is as if whole stacks had been stored.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        obs_shape: Sequence[int],
        sequence_length: int,
        hidden_size: int,
        num_layers: int = 1,
        sequence_overlap: int = 0,
        *,
        burn_in: int = 0,
        action_shape: Sequence[int] = (),
        obs_dtype: Any = torch.float32,
        action_dtype: Any = torch.int64,
        device: str | torch.device = "cpu",
        seed: int = 0,
        state_parts: int = 2,
        extra: Mapping[str, Field] | None = None,
        frames: FrameLayout | None = None,
        _priorities: Priorities | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if capacity < sequence_length:
            raise ValueError(f"capacity must be at least one sequence ({sequence_length} transitions), got {capacity}")
        if not 1 <= state_parts <= len(STATE_NAMES):  # a batch has no names for more
            raise ValueError(f"state_parts must lie in 1 … {len(STATE_NAMES)}, got {state_parts}")
        self.layout = ChunkLayout(sequence_length, burn_in, sequence_overlap)
        whole, self._actions = (
            Field(tuple(shape), as_torch_dtype(dtype)) for shape, dtype in ((obs_shape, obs_dtype), (action_shape, action_dtype))
        )
        self._obs = whole if frames is None else ROW
        self._state_shape = (state_parts, num_layers, hidden_size)
        self.extra = dict(extra or {})
        of_steps = {"rewards": Field((), torch.float32), "actions": self._actions, "dones": Field((), torch.uint8), **self.extra}
        fields = {name: Field((sequence_length, *field.shape), field.dtype) for name, field in of_steps.items()}
        fields["obs"] = Field((sequence_length + 1, *self._obs.shape), self._obs.dtype)
        fields["initial_state"] = Field(self._state_shape, torch.float32)
        # valid steps are the slots begin … end-1; start_slot -1: the episode began before
        fields |= dict.fromkeys(("begin", "end", "start_slot"), Field((), torch.int64))
        chunks = capacity // sequence_length
        how: dict[str, Any] = {"device": device, "seed": seed, "priorities": _priorities}
        self._framed: FramedRing | None = None
        if frames is not None:
            # A chunk brings a stride of new frames; those that are open hold more than their share.
            held = frames.capacity(chunks * self.layout.stride) + num_envs * (sequence_length + 1)
            self._framed = FramedRing(chunks, fields, obs=whole, stack=frames.stack, num_frames=held, **how)
        self._ring = SampledRing(chunks, fields, **how) if self._framed is None else self._framed
        self._assembler: ChunkAssembler | None = None  # of `add`
        self.capacity, self.num_envs = capacity, num_envs
        self._time = torch.arange(sequence_length, device=self.device)[:, None]
        self._trained = self._time >= burn_in

    @property
    def num_transitions(self) -> int:
        """Steps in stored chunks, and in those that `add` has open; a step that several chunks share counts in each."""
        storage = self._ring.storage
        steps = storage.values("end") - storage.values("begin")
        if self._framed is not None:
            steps = steps[torch.from_numpy(self._framed.live_slots()).to(steps.device)]
        return int(steps.sum()) + (0 if self._assembler is None else self._assembler.num_open)

    @property
    def bytes_per_transition(self) -> float:
        """Of a full chunk: see the class's text. Where frames are stored once: all that is allocated, per environment step that the chunks
        cover; those that overlap hold it several times."""
        if self._framed is not None:
            return self._ring.all_bytes / (self._ring.storage.capacity * self.layout.stride)
        return (self._ring.storage.row_bytes + 8 * self._ring.prioritized) / self.layout.length

    def make_assembler(self, num_envs: int | None = None, *, priorities: bool = False, priority_eta: float = 0.9) -> ChunkAssembler:
        """One that makes this buffer's chunks out of the steps of so many environments (`num_envs` unless given).

        priorities: the steps bring the actor's own, of which a chunk's first one is made with `priority_eta`.
        """
        carried = {**self.extra, "priorities": Field((), torch.float32)} if priorities else self.extra
        shapes: dict[str, Any] = {"obs": self._obs, "actions": self._actions, "state_shape": self._state_shape}
        return ChunkAssembler(
            self.layout, self.num_envs if num_envs is None else num_envs, **shapes, carried=carried, priority_eta=priority_eta
        )

    def add_items(self, items: Items) -> None:
        """Finished chunks (see `ChunkAssembler`; {}: none), oldest first. They are copied."""
        if self._framed is not None:
            items = self._framed.take_frames(items)
        if "end" in items and len(items["end"]):
            self._ring.add(items, len(items["end"]))

    def add(
        self,
        *,
        env_index: int,
        dones: Any,
        episode_start: Any,
        initial_state: Sequence[Any],
        truncated: Any = False,
        **fields: Any,
    ) -> None:
        """One step of one environment: `obs, actions, rewards, next_obs` and the extra fields, array-likes.

        initial_state: (h, c) or (h,), each [layers, H] or [layers, 1, H], the network's *before* it saw `obs`.
        `dones` (termination) and `truncated` end the episode and close its chunk.
        """
        if self._framed is not None:
            raise TypeError(NAMES_FRAMES)
        if not 0 <= env_index < self.num_envs:
            raise IndexError(f"env_index must lie in 0 … {self.num_envs - 1}, got {env_index}")
        _, layers, hidden = self._state_shape
        flags = {"terminated": dones, "truncated": truncated, "episode_starts": episode_start}
        step = Step(
            **{name: as_array(value)[None] for name, value in fields.items()},
            **{name: as_array(value).reshape(1).astype(bool) for name, value in flags.items()},
            initial_state=tuple(as_array(part).reshape(layers, 1, hidden) for part in initial_state),
        )
        if self._assembler is None:
            self._assembler = self.make_assembler()
        self.add_items(self._assembler.push(step, np.array([env_index])))

    def clear_active_chunks(self, env_indices: Any = None) -> None:
        """Forget the chunks that `add` has open (of these environments, or all)."""
        if self._assembler is not None:
            self._assembler.clear(env_indices)

    def sample(self, batch_size: int, beta: float | Tensor = 0.0, *, packed: bool = False) -> Batch:
        """Chunks, time first: `obs, actions, rewards, next_obs, dones, episode_starts, mask` [L, B, ...].

        `initial_h` and, where the state has two parts, `initial_c` [layers, B, H] are the stored state before the first valid step.
        `mask` is 1 on the steps to train: not on padding, nor on the burn-in. `next_obs` is `obs` one step on, the same memory; after the
        last valid step comes its true next observation, so every chunk that does not end in a termination can bootstrap there.
        In a chunk whose burn-in is empty (`episode_starts[burn_in]` is 1) the initial state is the one after it. Where the burn-in is
        longer than the trained part, an episode may also start inside it, after empty slots: reset the state there.
        """
        return self._time_first(self._ring.sample(batch_size, beta))

    def _time_first(self, batch: Batch) -> Batch:
        stacks = None if self._framed is None else self._framed.frames.stacks
        return time_first(batch, time=self._time, trained=self._trained, extra=self.extra, stacks=stacks)

    def state_dict(self, *, copy: bool = True) -> State:
        """Chunks in use, sampler and what `add` has open. `copy=False` shares the memory, for a checkpoint that is written at once."""
        return {**self._ring.state_dict(copy=copy), "open": None if self._assembler is None else self._assembler.state_dict()}

    def load_state_dict(self, state: State) -> None:
        if state["open"] is None:
            self._assembler = None
        else:
            assembler = self.make_assembler()
            assembler.load_state_dict(state["open"])
            self._assembler = assembler
        self._ring.load_state_dict(state)


def time_first(
    batch: Batch, *, time: Tensor, trained: Tensor, extra: Iterable[str], stacks: Callable[[Tensor], Tensor] | None = None
) -> Batch:
    """Chunks as they are stored to what `RecurrentReplayBuffer.sample` gives; `batch` is taken apart.

    time: [L, 1], 0 … L-1; trained: those past the burn-in. extra: further fields of a step. stacks: the observations that frame ids name.
    """
    obs, state = batch.pop("obs").transpose(0, 1), batch.pop("initial_state")
    if stacks is not None:
        obs = stacks(obs)
    _, end, start_slot = (batch.pop(name) for name in ("begin", "end", "start_slot"))
    for name in ("actions", "rewards", *extra):
        batch[name] = batch[name].transpose(0, 1)
    batch |= {
        "obs": obs[:-1],
        "next_obs": obs[1:],
        "dones": batch["dones"].transpose(0, 1).float(),
        "episode_starts": (time == start_slot).float(),
        "mask": (trained & (time < end)).float(),
    }
    for part, name in enumerate(STATE_NAMES[: state.shape[1]]):
        batch[name] = state[:, part].transpose(0, 1).contiguous()  # cuDNN takes no other
    return batch
