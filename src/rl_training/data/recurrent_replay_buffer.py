"""Replay of sequences for recurrent Q-learning (arXiv:1507.06527; R2D2, Kapturowski et al., ICLR 2019, §2.3 and §3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rl_training.data.sampled_ring import Priorities, SampledRing
from rl_training.data.sequences import ChunkAssembler, ChunkLayout
from rl_training.data.storage import Field, as_array, as_torch_dtype

if TYPE_CHECKING:
    from rl_training.types import Array, Batch, State


class RecurrentReplayBuffer:
    """Ring of chunks of `sequence_length` steps (L) that never cross an episode, each with the recurrent state at its start.

    `capacity` counts transitions: `capacity // L` chunks are held. How chunks are laid out over an episode, with `burn_in` (a part of L)
    and `sequence_overlap`, is described in sequences.py. A chunk stores its L + 1 observations once, actions and rewards, the state
    (2 · layers · hidden float32) and four int64 that `mask`, `dones` and `episode_starts` are made from when it is sampled:

        bytes per transition = ((L + 1)·obs + L·(action + 4) + 8·layers·hidden + 32, in whole words) / L      (+ 8 / L for a priority)
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
        _priorities: Priorities | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if capacity < sequence_length:
            raise ValueError(f"capacity must be at least one sequence ({sequence_length} transitions), got {capacity}")
        self.layout = ChunkLayout(sequence_length, burn_in, sequence_overlap)
        obs, action = Field(tuple(obs_shape), as_torch_dtype(obs_dtype)), Field(tuple(action_shape), as_torch_dtype(action_dtype))
        count = Field((), torch.int64)
        fields = {
            "obs": Field((sequence_length + 1, *obs.shape), obs.dtype),
            "rewards": Field((sequence_length,), torch.float32),
            "initial_state": Field((2, num_layers, hidden_size), torch.float32),
            "actions": Field((sequence_length, *action.shape), action.dtype),
            "begin": count,  # valid steps: slots begin … end-1
            "end": count,
            "done_slot": count,  # -1: none
            "start_slot": count,
        }
        self._ring = SampledRing(capacity // sequence_length, fields, device=device, seed=seed, priorities=_priorities)
        self._assembler = ChunkAssembler(
            self.layout,
            num_envs,
            obs_shape=obs.shape,
            obs_dtype=torch.empty(0, dtype=obs.dtype).numpy().dtype,
            action_shape=action.shape,
            action_dtype=torch.empty(0, dtype=action.dtype).numpy().dtype,
            state_shape=(num_layers, hidden_size),
        )
        self._all_envs = np.arange(num_envs)
        self.capacity, self.num_envs = capacity, num_envs
        self.device = self._ring.storage.device
        self._time = torch.arange(sequence_length, device=self.device)[:, None]
        self._trained = self._time >= burn_in

    def __len__(self) -> int:
        """Stored chunks."""
        return self._ring.storage.size

    @property
    def num_transitions(self) -> int:
        """Steps in stored and in open chunks; a step that several chunks share counts in each."""
        storage = self._ring.storage
        return int((storage.values("end") - storage.values("begin")).sum()) + self._assembler.num_steps

    @property
    def bytes_per_transition(self) -> float:
        """Of a full chunk: see the class's text."""
        return (self._ring.storage.row_bytes + 8 * self._ring.prioritized) / self.layout.length

    @property
    def nbytes(self) -> int:
        """Bytes allocated for chunks."""
        return self._ring.storage.nbytes

    @property
    def generator(self) -> Any:
        """What sampling draws from: a NumPy generator on the CPU, a torch one elsewhere (a CUDA graph must register it)."""
        return self._ring.sampler.generator

    def add(
        self,
        *,
        env_index: int,
        obs: Any,
        actions: Any,
        rewards: Any,
        next_obs: Any,
        dones: Any,
        episode_start: Any,
        initial_state: tuple[Any, Any],
        truncated: Any = False,
    ) -> None:
        """One step of one environment. initial_state: (h, c), each [layers, H] or [layers, 1, H], the network's *before* it saw `obs`.

        `dones` (termination) and `truncated` end the episode and close its chunk.
        """
        if not 0 <= env_index < self.num_envs:
            raise IndexError(f"env_index must lie in 0 … {self.num_envs - 1}, got {env_index}")
        layers, hidden = self._assembler.states.shape[-2:]
        state = tuple(as_array(part).reshape(layers, 1, hidden) for part in initial_state)
        self._push(
            np.array([env_index]),
            obs=as_array(obs)[None],
            actions=as_array(actions)[None],
            rewards=as_array(rewards).reshape(1),
            next_obs=as_array(next_obs)[None],
            terminated=as_array(dones).reshape(1).astype(bool),
            truncated=as_array(truncated).reshape(1).astype(bool),
            episode_starts=as_array(episode_start).reshape(1).astype(bool),
            initial_state=state,
        )

    def add_step(
        self,
        *,
        obs: Any,
        actions: Any,
        rewards: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        episode_starts: Any,
        initial_state: tuple[Any, Any],
        valid: Any = None,
    ) -> None:
        """One step of all environments: arrays [E, ...], states [layers, E, H] (read only when a chunk starts). `valid` false: no step."""
        arrays = {"obs": as_array(obs), "actions": as_array(actions), "rewards": as_array(rewards), "next_obs": as_array(next_obs)}
        flags = {"terminated": terminated, "truncated": truncated, "episode_starts": episode_starts}
        arrays |= {name: as_array(value).astype(bool, copy=False) for name, value in flags.items()}
        if valid is None or np.count_nonzero(valid) == self.num_envs:
            self._push(self._all_envs, **arrays, initial_state=initial_state)
            return
        rows = np.flatnonzero(as_array(valid))
        if len(rows):
            state = tuple(part[:, rows] for part in initial_state)
            self._push(rows, **{name: value[rows] for name, value in arrays.items()}, initial_state=state)

    def _push(self, envs: Array, **step: Any) -> None:
        self._store(self._assembler.push(envs, **step))

    def _store(self, closed: list[dict[str, Array]]) -> None:
        for chunks in closed:
            self._ring.add(chunks, len(chunks["end"]))

    def end_episodes(self, env_indices: Any) -> None:
        """These environments could not be brought back and begin a fresh episode: what they did here ends as at a time limit."""
        self._store(self._assembler.end(as_array(env_indices)))

    def clear_active_chunks(self, env_indices: Any = None) -> None:
        """Forget the open chunks (of these environments, or all)."""
        self._assembler.clear(env_indices)

    def sample(self, batch_size: int) -> Batch:
        """Chunks, time first: `obs, actions, rewards, next_obs, dones, episode_starts, mask` [L, B, ...].

        `initial_h, initial_c` [layers, B, H] are the stored state before the first valid step.
        `mask` is 1 on the steps to train: not on padding, nor on the burn-in. `next_obs` is `obs` one step on, the same memory; after the
        last valid step comes its true next observation, so every chunk that does not end in a termination can bootstrap there.
        In a chunk whose burn-in is empty (`episode_starts[burn_in]` is 1) the initial state is the one after it. Where the burn-in is
        longer than the trained part, an episode may also start inside it, after empty slots: reset the state there.
        """
        return self._time_first(self._ring.sample(batch_size))

    def _time_first(self, batch: Batch) -> Batch:
        obs, state = batch.pop("obs").transpose(0, 1), batch.pop("initial_state")
        _, end, done_slot, start_slot = (batch.pop(name) for name in ("begin", "end", "done_slot", "start_slot"))
        return {
            **batch,
            "obs": obs[:-1],
            "next_obs": obs[1:],
            "actions": batch["actions"].transpose(0, 1),
            "rewards": batch["rewards"].transpose(0, 1),
            "dones": (self._time == done_slot).float(),
            "episode_starts": (self._time == start_slot).float(),
            "mask": (self._trained & (self._time < end)).float(),
            "initial_h": state[:, 0].transpose(0, 1).contiguous(),  # cuDNN takes no other
            "initial_c": state[:, 1].transpose(0, 1).contiguous(),
        }

    def state_dict(self, *, copy: bool = True) -> State:
        """Chunks in use, sampler and open chunks. `copy=False` shares the chunks' memory, for a checkpoint that is written at once."""
        return {**self._ring.state_dict(copy=copy), "open": self._assembler.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._assembler.load_state_dict(state["open"])
        self._ring.load_state_dict(state)
