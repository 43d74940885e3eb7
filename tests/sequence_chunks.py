"""What the recurrent tests share: networks with prescribed values, random chunks as recurrent replay gives them, and a naive reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models import NO_DRAWS, Draws, Facts, LSTMQNetwork, MLPQNetwork
from rl_training.models.network import facts_of

Chunk = dict[str, Tensor]


class TableNetwork(nn.Module):
    """Q(s) = table[s], the observation being the state's number [..., 1]: targets become arithmetic. The core passes through."""

    def __init__(self, table: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.head = _TableHead(table)

    def draw(self, generator: torch.Generator, batch_shape: Sequence[int], role: str) -> Draws:
        return NO_DRAWS

    def initial_state(self, batch_size: int) -> tuple[Tensor, ...]:
        return torch.zeros(1, batch_size, 1), torch.zeros(1, batch_size, 1)

    def unroll_core(self, obs: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return obs, state

    def reset_state(self, state: tuple[Tensor, ...], episode_starts: Tensor) -> tuple[Tensor, ...]:
        return state

    def step(self, obs: Tensor, state: tuple[Tensor, ...], starts: Tensor, draws: Draws = NO_DRAWS) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.head(obs, draws), state

    def greedy(self, outputs: Any) -> Any:
        return outputs.argmax(-1)

    @property
    def facts(self) -> Facts:
        return facts_of(self, recurrent=True)


class _TableHead(nn.Module):
    draws_taus = False

    def __init__(self, table: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table))

    def forward(self, core: Tensor, draws: Draws) -> Tensor:
        return self.table[core[..., 0].long()]

    def q_values(self, out: Tensor) -> Tensor:
        return out


class Memoryless(MLPQNetwork):
    """A feed-forward network that also answers to a recurrent learner."""

    def unroll_core(self, obs: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.torso(obs), state


def lstm(seed: int = 0, *, obs_dim: int = 3, actions: int = 3, hidden: int = 6, layers: int = 1, **options: Any) -> LSTMQNetwork:
    torch.manual_seed(seed)
    return LSTMQNetwork((obs_dim,), actions, 5, (7,), (), hidden, layers, **options)


def table_chunk(
    states: Sequence[int],
    rewards: Sequence[float],
    *,
    terminated: bool = False,
    length: int | None = None,
    actions: Sequence[int] | None = None,
) -> Chunk:
    """One chunk [T, 1] that visits `states` (one more than `rewards`), right-padded to `length` with states 0 and masked rewards 99."""
    steps = len(rewards)
    length = length or steps
    padding = length - steps
    visited = torch.tensor([*states, *[0] * padding], dtype=torch.float32)[:, None, None]
    ones, zeros = [1.0] * steps, [0.0] * padding
    return {
        "obs": visited[:-1],
        "next_obs": visited[1:],
        "actions": torch.tensor([*(actions or [0] * steps), *[0] * padding])[:, None],
        "rewards": torch.tensor([*rewards, *[99.0] * padding])[:, None],
        "dones": torch.tensor([*[0.0] * (steps - 1), float(terminated), *zeros])[:, None],
        "mask": torch.tensor([*ones, *zeros])[:, None],
        "episode_starts": torch.tensor([1.0, *[0.0] * (length - 1)])[:, None],
        "initial_h": torch.zeros(1, 1, 1),
        "initial_c": torch.zeros(1, 1, 1),
    }


def random_chunks(
    seed: int, *, length: int, burn_in: int = 0, batch: int = 4, obs_dim: int = 3, actions: int = 3, hidden: int = 6, layers: int = 1
) -> Chunk:
    """Chunks [T, B] of every kind: full or padded on the right, terminated or not, starting an episode (left-padded burn-in) or inside one.

    Padding holds large numbers, which must not matter.
    """
    rng = np.random.default_rng(seed)
    obs = np.full((length + 1, batch, obs_dim), 7.0, np.float32)
    rewards = np.full((length, batch), -50.0, np.float32)
    dones, mask, starts = (np.zeros((length, batch), np.float32) for _ in range(3))
    state = rng.normal(size=(2, layers, batch, hidden)).astype(np.float32) * 0.5
    for b in range(batch):
        first = rng.random() < 0.5  # starts an episode
        begin = burn_in if first else 0
        end = int(rng.integers(burn_in + 1, length + 1))
        obs[begin : end + 1, b] = rng.normal(size=(end + 1 - begin, obs_dim))
        rewards[begin:end, b] = rng.normal(size=end - begin)
        mask[begin:end, b] = 1
        dones[end - 1, b] = float(rng.random() < 0.5)
        if first:
            starts[begin, b] = 1
            state[:, :, b] = 0
    arrays = {
        "obs": obs[:-1],
        "next_obs": obs[1:],
        "actions": rng.integers(actions, size=(length, batch)),
        "rewards": rewards,
        "dones": dones,
        "mask": mask,
        "episode_starts": starts,
        "initial_h": state[0],
        "initial_c": state[1],
        "weights": rng.uniform(0.2, 1.0, size=batch).astype(np.float32),
    }
    chunks = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in arrays.items()}
    return {key: value if key == "actions" else value.to(torch.get_default_dtype()) for key, value in chunks.items()}


def naive_errors(
    batch: Chunk, online: LSTMQNetwork, target: LSTMQNetwork, *, gamma: float, n_step: int, burn_in: int, double_q: bool
) -> list[list[Tensor]]:
    """δ of every trained step, by chunk: one sequence and one step at a time, returns by their definition."""
    errors = []
    for b in range(batch["rewards"].shape[1]):
        valid = [t for t in range(len(batch["mask"])) if batch["mask"][t, b] == 1]
        begin, end = valid[0], valid[-1] + 1
        q, q_target = (_steps(net, batch, b, begin, end, burn_in) for net in (online, target))
        chunk = []
        for t in range(burn_in, end):
            value, discount, at, terminal = 0.0, 1.0, t, False
            while at < end and at - t < n_step and not terminal:
                value += discount * float(batch["rewards"][at, b])
                terminal = float(batch["dones"][at, b]) == 1
                discount *= gamma
                at += 1
            if not terminal:
                select = q[at] if double_q else q_target[at]
                value += discount * float(q_target[at].detach()[int(select.argmax())])
            chunk.append(value - q[t][int(batch["actions"][t, b])])
        errors.append(chunk)
    return errors


def _steps(net: LSTMQNetwork, batch: Chunk, b: int, begin: int, end: int, burn_in: int) -> dict[int, Tensor]:
    """Q at every observation begin … end of one sequence, without gradient through its burn-in."""
    state = (batch["initial_h"][:, b : b + 1], batch["initial_c"][:, b : b + 1])
    q = {}
    for t in range(begin, end + 1):
        obs = batch["obs"][t, b] if t < len(batch["obs"]) else batch["next_obs"][-1, b]
        if t == burn_in:
            state = (state[0].detach(), state[1].detach())
        out, state = net.unroll(obs[None, None], state)
        q[t] = out[0, 0]
    return q
