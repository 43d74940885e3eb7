"""One rollout of all environments, [T, E], and its advantages: what on-policy learning uses once and forgets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.data.n_step import carried_field
from rl_training.data.storage import Field, as_array, as_torch_dtype
from rl_training.resources import require_memory
from rl_training.types import STATE_NAMES, Step

if TYPE_CHECKING:
    from rl_training.types import Array, Batch, State


def generalized_advantages(
    rewards: Array, values: Array, next_values: Array, terminated: Array, ended: Array, *, gamma: float, gae_lambda: float
) -> Array:
    """GAE(λ) (arXiv:1506.02438, eq. 16), all [T, E]:

    δ_t = r_t + γ(1 − terminated_t)·V'_t − V_t        A_t = δ_t + γλ(1 − ended_t)·A_{t+1},   A_T = 0

    `next_values` V' is the value of the observation an action really led to: at a time limit that of the final one, from which δ still
    bootstraps. `ended` (terminated or truncated) only stops the sum: what follows belongs to another episode.
    """
    advantages: Array = rewards + gamma * np.where(terminated, 0.0, next_values).astype(np.float32) - values
    decay = np.where(ended, 0.0, gamma * gae_lambda).astype(np.float32)
    for t in range(len(advantages) - 2, -1, -1):
        advantages[t] += decay[t] * advantages[t + 1]
    return advantages


class Sequences(NamedTuple):
    """The stretches of one episode in a rollout, none crossing an episode's start: S of them, the longest of L steps."""

    steps: Array  # [L, S] indices into the flattened [T·E]; a padding step repeats the stretch's last one
    mask: Array  # [L, S] float32: 1 on real steps
    from_start: Array  # [S] bool: begins with the rollout, from the state carried into it (else with an episode, from zeros)
    env: Array  # [S]


class RolloutBuffer:
    """`num_steps` steps of `num_envs` environments, written step by step and read whole.

    Holds `obs`, `next_obs` (the true final one at an episode's end), `actions`, `rewards`, `terminated`, `truncated`, `valid` (false on the
    reset step of a vector environment), `episode_starts`, and the recurrent state carried into the first step.
    extra: further fields of a step, stored and learned from under their names (see `Step`).
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        obs_shape: Sequence[int],
        action_shape: Sequence[int] = (),
        obs_dtype: Any = torch.float32,
        device: str | torch.device = "cpu",
        seed: int = 0,
        *,
        action_dtype: Any = torch.int64,
        extra: Mapping[str, Field] | None = None,
    ) -> None:
        if num_steps < 1 or num_envs < 1:
            raise ValueError(f"num_steps and num_envs must be >= 1, got {num_steps} and {num_envs}")
        self.num_steps, self.num_envs, self.device = num_steps, num_envs, torch.device(device)
        self.extra = dict(extra or {})
        obs, flag = Field(tuple(obs_shape), as_torch_dtype(obs_dtype)), Field((), torch.bool)
        fields = {
            "obs": obs,
            "next_obs": obs,
            "actions": Field(tuple(action_shape), as_torch_dtype(action_dtype)),
            "rewards": Field((), torch.float32),
            **self.extra,
        }
        fields |= {"terminated": flag, "truncated": flag, "valid": flag, "episode_starts": flag}
        item = sum(math.prod(shape) * dtype.itemsize for shape, dtype in fields.values())
        what = f"a rollout of {num_steps:,} steps of {num_envs:,} environments"
        require_memory(num_steps * num_envs * item, device="cpu", what=what, remedy="lower num_steps")
        pinned = self.device.type == "cuda"  # page-locked: a rollout of images goes over in one fast copy
        self._tensors = {
            name: torch.zeros(num_steps, num_envs, *shape, dtype=dtype, pin_memory=pinned and name == "obs")
            for name, (shape, dtype) in fields.items()
        }
        self._host = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        self._rng = np.random.default_rng(seed)
        self._initial_state: tuple[Tensor, ...] = ()
        self._position = 0
        self._sent: dict[str, Tensor] = {}  # fields of what is held now, on the device

    def __len__(self) -> int:
        """Steps of each environment held now."""
        return self._position

    @property
    def full(self) -> bool:
        return self._position == self.num_steps

    @property
    def num_transitions(self) -> int:
        """Real steps of all environments held now."""
        return int(np.count_nonzero(self._host["valid"][: self._position]))

    def clear(self) -> None:
        self._position, self._initial_state = 0, ()
        self._sent.clear()

    def add(self, step: Step | None = None, **fields: Any) -> None:
        """One step of every environment: a `Step`, or its fields by name. The recurrent state is kept from the first one only."""
        if step is None:
            step = Step(**fields)
        at, host = self._position, self._host
        if at == self.num_steps:
            raise ValueError(f"the rollout is full: {self.num_steps} steps")
        host["obs"][at] = as_array(step.obs)
        host["next_obs"][at] = as_array(step.next_obs)
        host["actions"][at] = as_array(step.actions)
        host["rewards"][at] = as_array(step.rewards)
        host["terminated"][at], host["truncated"][at] = step.terminated, step.truncated
        if step.lost_life is not None:  # GAE stops here as at a termination; `episode_starts` says that the recurrent state goes on
            host["terminated"][at] |= step.lost_life
        host["episode_starts"][at] = False if step.episode_starts is None else step.episode_starts
        host["valid"][at] = True if step.valid is None else step.valid
        for name in self.extra:
            host[name][at] = carried_field(step, name)
        if at == 0:
            self._initial_state = tuple(tensor.detach().cpu().clone() for tensor in step.initial_state)
        self._position = at + 1
        self._sent.clear()

    def end_episodes(self, env_indices: Any) -> None:
        """These environments could not be brought back and begin a fresh episode: what they did here ends as at a time limit."""
        at = self._position - 1
        if at >= 0:
            self._host["truncated"][at, env_indices] = ~self._host["terminated"][at, env_indices]

    # Reading a rollout

    def field(self, name: str) -> Array:
        """[t, E, ...], a view of what is held."""
        return self._host[name][: self._position]

    def sent(self, name: str) -> Tensor:
        """The same as one axis of steps [t·E, ...] on the device, where it goes once however often it is asked for."""
        if name not in self._sent:
            self._sent[name] = _to_device(self._tensors[name][: self._position].flatten(0, 1), self.device)
        return self._sent[name]

    def bootstrap_rows(self) -> Array:
        """Where V' is no other step's V: the flat indices of the steps that end by a time limit or by the rollout's end."""
        terminated, truncated = self.field("terminated"), self.field("truncated")
        open_end = truncated.copy()
        open_end[-1] |= ~terminated[-1]
        return np.flatnonzero(open_end)

    def advantages(self, values: Array, next_values: Array, *, gamma: float, gae_lambda: float) -> Array:
        terminated = self.field("terminated")
        ended = terminated | self.field("truncated")
        options = {"gamma": gamma, "gae_lambda": gae_lambda}
        return generalized_advantages(self.field("rewards"), values, next_values, terminated, ended, **options)

    def items(self, **more: Array) -> Batch:
        """`obs`, `actions`, the extra fields and `more` ([T, E, ...] arrays of the learner's) with time and environments as one axis, on
        the device."""
        held = {name: self.sent(name) for name in ("obs", "actions", *self.extra)}
        return held | {name: torch.from_numpy(array.reshape(-1, *array.shape[2:])).to(self.device) for name, array in more.items()}

    def minibatches(self, items: Batch, size: int, *, epochs: int = 1) -> Iterator[Batch]:
        """Each epoch holds every valid step once, in a new random order, in equal parts of at most `size` (equal to within one).

        A part that is the whole rollout is the same in any order, so it is made once.
        """
        valid = np.flatnonzero(self.field("valid"))
        lengths = equal_parts(len(valid), size)
        if len(lengths) == 1:
            whole = torch.from_numpy(valid).to(self.device)
            batch = {name: values.index_select(0, whole) for name, values in items.items()}
            yield from itertools.repeat(batch, epochs)
            return
        for _ in range(epochs):
            order = torch.from_numpy(self._rng.permutation(valid)).to(self.device)
            shuffled = {name: values.index_select(0, order) for name, values in items.items()}
            begin = 0
            for length in lengths:
                yield {name: values[begin : begin + length] for name, values in shuffled.items()}
                begin += length

    def sequences(self) -> Sequences:
        """The stretches to unroll a recurrent network over, in the order (environment, time)."""
        valid, starts = self.field("valid"), self.field("episode_starts")
        num_envs = self.num_envs
        previous = np.vstack([np.zeros((1, num_envs), bool), valid[:-1]])
        begins = valid & (starts | ~previous)
        env, time = np.nonzero(begins.T)
        # Each stretch ends where the next one of its environment begins, or with the last valid step before that.
        count = valid.cumsum(0)  # valid steps up to and with t
        before = count[time, env] - 1  # ... before the stretch
        last = np.append(env[1:] != env[:-1], True)
        lengths = np.where(last, count[-1, env], np.append(before[1:], 0)) - before
        offsets = np.arange(lengths.max(initial=0))[:, None]
        index = (time + np.minimum(offsets, lengths - 1)) * num_envs + env
        return Sequences(index, (offsets < lengths).astype(np.float32), (time == 0) & ~starts[time, env], env)

    def initial_states(self, sequences: Sequences) -> tuple[Tensor, ...]:
        """What the network held before each stretch, [layers, S, hidden] each: zeros where an episode begins."""
        keep = torch.from_numpy(sequences.from_start)[:, None]
        picked = torch.from_numpy(sequences.env)
        return tuple((tensor[:, picked] * keep).to(self.device) for tensor in self._initial_state)

    def sequence_minibatches(
        self, items: Batch, sequences: Sequences, states: Sequence[Tensor], size: int, *, epochs: int = 1
    ) -> Iterator[Batch]:
        """The same with whole stretches: [L, B, ...] with `mask`, and `initial_h`, `initial_c` where there is a state.

        An epoch has as many parts as transitions would make; each takes stretches until its share of the steps is reached.
        """
        lengths = sequences.mask.sum(0).astype(np.int64)
        parts = len(equal_parts(int(lengths.sum()), size))

        def batch_of(chosen: Array) -> Batch:
            longest = int(lengths[chosen].max())
            index = torch.from_numpy(sequences.steps[:longest, chosen].reshape(-1)).to(self.device)
            columns = torch.from_numpy(chosen).to(self.device)
            batch = {name: x.index_select(0, index).view(longest, len(chosen), *x.shape[1:]) for name, x in items.items()}
            batch["mask"] = torch.from_numpy(sequences.mask[:longest, chosen]).to(self.device)
            batch |= {name: state.index_select(1, columns) for name, state in zip(STATE_NAMES[: len(states)], states, strict=True)}
            return batch

        if parts == 1:
            yield from itertools.repeat(batch_of(np.arange(len(lengths))), epochs)
            return
        for _ in range(epochs):
            order = self._rng.permutation(len(lengths))
            done = lengths[order].cumsum()
            # A stretch goes where the middle of its steps falls; a part may so stay empty.
            part = ((done - lengths[order] / 2) * parts / done[-1]).astype(np.int64)
            for k in range(parts):
                if (chosen := order[part == k]).size:
                    yield batch_of(chosen)

    # State

    def state_dict(self, *, copy: bool = True) -> State:
        """Only the steps in use."""
        rows = {name: tensor[: self._position] for name, tensor in self._tensors.items()}
        return {
            "position": self._position,
            "rows": {name: tensor.clone() if copy else tensor for name, tensor in rows.items()},
            "initial_state": list(self._initial_state),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: State) -> None:
        position = int(state["position"])
        if not 0 <= position <= self.num_steps or state["rows"].keys() != self._tensors.keys():
            raise ValueError(f"a saved rollout of {position} steps does not fit one of {self.num_steps}")
        for name, rows in state["rows"].items():
            if tuple(rows.shape) != (position, *self._tensors[name].shape[1:]):
                raise ValueError(f"saved {name} have the shape {list(rows.shape)}")
            self._tensors[name][:position] = torch.as_tensor(rows)
        self._position = position
        self._sent.clear()
        self._initial_state = tuple(state["initial_state"])
        self._rng.bit_generator.state = state["rng"]


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """On the CPU the tensor itself. A copy to a GPU may be under way on return: acting waits for it before the next step is written."""
    return tensor.to(device, non_blocking=True)


def equal_parts(total: int, size: int) -> list[int]:
    """The fewest parts of at most `size`, equal to within one: no minibatch is a leftover of a few steps."""
    parts = -(-total // size)
    return [total // parts + (k < total % parts) for k in range(parts)]
