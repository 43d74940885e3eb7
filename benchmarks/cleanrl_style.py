"""DQN as one screen of plain PyTorch, in the manner of CleanRL: what a careful user writes without a library. A peer in the benchmarks.

Nothing of ours is used. Adam on separate parameters, a NumPy ring for replay, a Gymnasium vector environment (the bare one with
`vector=False`, which CleanRL does not do but is faster). It logs into a list, which is cheaper than the writer CleanRL uses.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def q_network(obs_dim: int, actions: int, hidden: tuple[int, ...]) -> nn.Sequential:
    sizes, layers = (obs_dim, *hidden), []
    for i, o in pairwise(sizes):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], actions))


class Replay:
    def __init__(self, capacity: int, obs_dim: int, seed: int) -> None:
        self.obs = np.zeros((capacity, obs_dim), np.float32)
        self.next_obs = np.zeros((capacity, obs_dim), np.float32)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.dones = np.zeros(capacity, np.float32)
        self.capacity, self.position, self.size = capacity, 0, 0
        self.rng = np.random.default_rng(seed)

    def add(self, obs: Any, action: Any, reward: Any, next_obs: Any, done: Any) -> None:
        i = self.position
        self.obs[i], self.actions[i], self.rewards[i], self.next_obs[i], self.dones[i] = obs, action, reward, next_obs, done
        self.position = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch_size: int) -> tuple[torch.Tensor, ...]:
        rows = self.rng.integers(self.size, size=batch_size)
        fields = (self.obs, self.actions, self.rewards, self.next_obs, self.dones)
        return tuple(torch.from_numpy(field[rows]) for field in fields)


class Learner:
    def __init__(self, obs_dim: int, actions: int, hidden: tuple[int, ...], *, lr: float = 1e-3, gamma: float = 0.99) -> None:
        self.q, self.target = q_network(obs_dim, actions, hidden), q_network(obs_dim, actions, hidden)
        self.target.load_state_dict(self.q.state_dict())
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=lr)
        self.gamma = gamma

    def update(self, replay: Replay, batch_size: int) -> torch.Tensor:
        obs, actions, rewards, next_obs, dones = replay.sample(batch_size)
        with torch.no_grad():
            target = rewards + self.gamma * self.target(next_obs).max(dim=1).values * (1 - dones)
        chosen = self.q(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(chosen, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def sync(self) -> None:
        for target, online in zip(self.target.parameters(), self.q.parameters(), strict=True):
            target.data.copy_(online.data)


def train(
    env_id: str,
    *,
    total_timesteps: int,
    hidden: tuple[int, ...],
    batch_size: int = 64,
    train_frequency: int = 1,
    learning_starts: int = 1_000,
    target_update_interval: int = 500,
    buffer_capacity: int = 100_000,
    epsilon: float = 0.1,
    seed: int = 0,
    vector: bool = True,
) -> list[float]:
    torch.manual_seed(seed)
    explore = np.random.default_rng(seed)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))
    autoreset = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([lambda: env], autoreset_mode=autoreset) if vector else None
    obs_dim, actions = env.observation_space.shape[0], int(env.action_space.n)
    learner, replay = Learner(obs_dim, actions, hidden), Replay(buffer_capacity, obs_dim, seed)
    log: list[float] = []
    obs, _ = (envs or env).reset(seed=seed)
    for step in range(1, total_timesteps + 1):
        if step <= learning_starts or explore.random() < epsilon:
            action = int(explore.integers(actions))
        else:
            with torch.no_grad():
                action = int(learner.q(torch.as_tensor(obs)).argmax(-1))
        if envs is not None:
            next_obs, rewards, terminated, truncated, infos = envs.step(np.array([action]))
            ended = terminated[0] or truncated[0]
            final = infos["final_obs"][0] if ended else next_obs[0]
            replay.add(obs[0], action, rewards[0], final, terminated[0])
        else:
            next_obs, reward, over, cut, _ = env.step(action)
            replay.add(obs, action, reward, next_obs, over)
            if over or cut:
                next_obs, _ = env.reset()
        obs = next_obs
        if step > learning_starts and step % train_frequency == 0:
            loss = learner.update(replay, batch_size)
            if step % 100 == 0:
                log.append(loss.item())
        if step % target_update_interval == 0:
            learner.sync()
    return log
