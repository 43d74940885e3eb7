"""Environment steps per second of PQN on CartPole, whole loop: act, step, Q(λ) returns, epochs of minibatches.

The peer is PQN as one screen of plain PyTorch, in the manner of CleanRL's `pqn.py`: Gymnasium's SyncVectorEnv, Q-values by module calls,
`torch.optim.RAdam` and `clip_grad_norm_`, the returns in a loop over time. Both do the same work: the same environment (which looks at the
clock itself, at the first step of two rollouts, so that imports, set-up and final evaluation count for nobody), layers of the same sizes
with layer norm, the same rollouts, epochs, minibatches and exploration. The peer treats a time limit as an end, as CleanRL's does, which is
less work; ours alone also writes its usual logs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from benchmarks.common import Contender, arguments, compare, prepare, save
from benchmarks.on_policy import train_rollouts
from benchmarks.throughput import ENV_ID, TimedCartPole

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCH = 32, 64, 4, 128  # the paper's public CartPole settings
RATE, GAMMA, LAMBDA, EPSILON, MAX_NORM = 1e-3, 0.99, 0.95, 0.2, 10.0
HIDDEN = (128, 128)


def timed(train: Callable[[int], object], warm: int, rollouts: int) -> Contender:
    """Environment steps per second over `rollouts` rounds, after `warm` of them."""
    first, last = warm * NUM_STEPS + 1, (warm + rollouts) * NUM_STEPS + 1

    def measure() -> float:
        TimedCartPole.first, TimedCartPole.last, TimedCartPole.marks = first, last, {}
        train(NUM_ENVS * last)
        return NUM_ENVS * (last - first) / (TimedCartPole.marks[last] - TimedCartPole.marks[first])

    return measure


def train_single_file(total: int) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    envs = gym.vector.SyncVectorEnv([partial(gym.make, ENV_ID) for _ in range(NUM_ENVS)])
    layers: list[nn.Module] = []
    for i, o in pairwise((4, *HIDDEN)):
        layers += [nn.Linear(i, o), nn.LayerNorm(o), nn.ReLU()]
    q_network = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 2))
    optimizer = torch.optim.RAdam(q_network.parameters(), lr=RATE)
    obs = torch.zeros(NUM_STEPS, NUM_ENVS, 4)
    actions = torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.int64)
    rewards, dones, values = (torch.zeros(NUM_STEPS, NUM_ENVS) for _ in range(3))
    next_obs, next_done = torch.from_numpy(envs.reset(seed=0)[0]), torch.zeros(NUM_ENVS)
    done_steps, losses = 0, []
    while done_steps < total:
        for step in range(NUM_STEPS):
            done_steps += NUM_ENVS
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                q = q_network(next_obs)
            values[step] = q.max(dim=1).values
            explore = torch.from_numpy(rng.random(NUM_ENVS) < EPSILON)
            actions[step] = torch.where(explore, torch.from_numpy(rng.integers(2, size=NUM_ENVS)), q.argmax(dim=1))
            following, reward, terminated, truncated, _ = envs.step(actions[step].numpy())
            rewards[step] = torch.from_numpy(np.asarray(reward, np.float32))
            next_obs, next_done = torch.from_numpy(following), torch.from_numpy(terminated | truncated).float()
        with torch.no_grad():
            returns = torch.zeros_like(rewards)
            for t in reversed(range(NUM_STEPS)):
                if t == NUM_STEPS - 1:
                    following_value, alive = q_network(next_obs).max(dim=1).values, 1 - next_done
                    returns[t] = rewards[t] + GAMMA * following_value * alive
                else:
                    alive = 1 - dones[t + 1]
                    returns[t] = rewards[t] + GAMMA * alive * (LAMBDA * returns[t + 1] + (1 - LAMBDA) * values[t + 1])
        flat_obs, flat_actions, flat_returns = obs.reshape(-1, 4), actions.reshape(-1), returns.reshape(-1)
        order = np.arange(NUM_ENVS * NUM_STEPS)
        for _ in range(EPOCHS):
            rng.shuffle(order)
            for start in range(0, len(order), MINIBATCH):
                rows = order[start : start + MINIBATCH]
                chosen = q_network(flat_obs[rows]).gather(1, flat_actions[rows].unsqueeze(1)).squeeze(1)
                loss = nn.functional.mse_loss(chosen, flat_returns[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(q_network.parameters(), MAX_NORM)
                optimizer.step()
        losses.append(loss.detach())
    envs.close()


def train_ours(total: int, *, threads: int) -> None:
    settings: dict[str, Any] = {
        "learning_rate": RATE,
        "gamma": GAMMA,
        "q_lambda": LAMBDA,
        "num_steps": NUM_STEPS,
        "minibatch_size": MINIBATCH,
        "update_epochs": EPOCHS,
        "hidden_sizes": HIDDEN,
        "max_grad_norm": MAX_NORM,
        "epsilon": EPSILON,
    }
    train_rollouts("pqn", settings, total, num_envs=NUM_ENVS, threads=threads)


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--warm", type=int, default=1, help="rollouts before the clock starts (default: %(default)s)")
    parser.add_argument("--rollouts", type=int, default=4, help="rollouts on the clock (default: %(default)s)")
    options = parser.parse_args()
    prepare(options)
    gym.register(id=ENV_ID, entry_point=TimedCartPole, max_episode_steps=500)
    work: dict[str, Callable[[int], object]] = {"ours": partial(train_ours, threads=options.threads), "single file": train_single_file}
    contenders = {name: timed(run, options.warm, options.rollouts) for name, run in work.items()}
    name = f"PQN: {NUM_ENVS} environments, rollouts of {NUM_STEPS}, {EPOCHS} epochs of minibatches of {MINIBATCH}, hidden {HIDDEN}"
    save(options.json, options, [compare(name, "environment steps/s", contenders, rounds=options.rounds)])


if __name__ == "__main__":
    main()
