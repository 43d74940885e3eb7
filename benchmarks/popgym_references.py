"""What simple policies get on POPGym's tasks of the suite `memory`: `python -m benchmarks.popgym_references`. Needs the extra memory.

CartPole, with and without noise: random actions, the best of 32 linear policies of the current observation, and a Kalman filter with
linear-quadratic control, which knows the physics. RepeatPreviousMedium: guesses, another suit than the one in sight (the best without
memory), the commonest suit of the last 32, and what an LSTM says that is told the right answer at every step of fresh episodes
(`--lstm-updates`, 0 for none): rewards alone say less.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rl_training.envs.memory import import_popgym
from rl_training.types import Array

RESULTS = Path(__file__).resolve().parent / "results" / "popgym_references.json"
SUITS, CARDS, AGO = 4, 104, 32
Policy = Callable[[Sequence[Any], Sequence[int]], int]
"""From what was seen and what was done in this episode so far to an action."""


def play(env: gym.Env[Any, Any], policy: Policy, episodes: int, first_seed: int) -> dict[str, float]:
    returns = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=first_seed + episode)
        seen, done, total, over = [obs], [], 0.0, False
        while not over:
            done.append(policy(seen, done))
            obs, reward, terminated, truncated, _ = env.step(done[-1])
            seen.append(obs)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return {"mean": round(float(np.mean(returns)), 4), "standard_error": round(float(np.std(returns)) / episodes**0.5, 4)}


# CartPole


class Filter:
    """The pole's state by a Kalman filter on Gymnasium's equations, linear about the upright; pushes by the discrete Riccati equation.

    State x, ẋ, θ, θ̇; cost diag(0.01, 1, 100, 1) of the state and 0.001 of the force.
    """

    def __init__(self, sigma: float) -> None:
        gravity, pole, length, dt, total = 9.8, 0.1, 0.5, 0.02, 1.1
        inertia = length * (4 / 3 - pole / total)
        turn, push = gravity / inertia, -1 / (total * inertia)  # θ̈ = turn · θ + push · force
        drag = pole * length / total  # ẍ = force / total − drag · θ̈
        self.move = np.eye(4) + dt * np.array([[0, 1, 0, 0], [0, 0, -drag * turn, 0], [0, 0, 0, 1], [0, 0, turn, 0]])
        self.force = dt * np.array([0, 1 / total - drag * push, 0, push])
        self.look = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0]])
        self.noise = max(sigma, 1e-4) ** 2 * np.eye(2)
        cost = value = np.diag([0.01, 1.0, 100.0, 1.0])
        for _ in range(5_000):
            gain = self.force @ value @ self.move / (self.force @ value @ self.force + 1e-3)
            value = cost + self.move.T @ value @ (self.move - np.outer(self.force, gain))
        self.gain = gain

    def __call__(self, seen: Sequence[Array], done: Sequence[int]) -> int:
        if not done:  # it starts within ±0.05
            self.state, self.spread = np.zeros(4), np.eye(4) * 0.05**2 / 3
        else:
            self.state = self.move @ self.state + self.force * (10.0 if done[-1] else -10.0)
            self.spread = self.move @ self.spread @ self.move.T + 1e-6 * np.eye(4)
        trust = self.spread @ self.look.T @ np.linalg.inv(self.look @ self.spread @ self.look.T + self.noise)
        self.state = self.state + trust @ (seen[-1] - self.look @ self.state)
        self.spread = (np.eye(4) - trust @ self.look) @ self.spread
        return int(self.gain @ self.state < 0)


def cartpole(env_id: str, sigma: float) -> dict[str, Any]:
    env, random = gym.make(env_id).unwrapped, np.random.default_rng(0)
    lines = [np.array([np.cos(angle), np.sin(angle)]) for angle in np.linspace(0, 2 * np.pi, 32, endpoint=False)]

    def linear(line: Array) -> Policy:
        return lambda seen, done: int(line @ seen[-1] > 0)

    best = max(lines, key=lambda line: play(env, linear(line), 40, 2_000_000)["mean"])
    return {
        "random": play(env, lambda seen, done: int(random.integers(2)), 500, 1_000_000),
        "best linear policy of the current observation": play(env, linear(best), 300, 3_000_000),
        "Kalman filter, linear-quadratic control": play(env, Filter(sigma), 300, 7_000_000),
    }


# RepeatPreviousMedium


def repeat_previous() -> dict[str, Any]:
    env, random = gym.make("popgym-RepeatPreviousMedium-v0").unwrapped, np.random.default_rng(0)
    return {
        "random": play(env, lambda seen, done: int(random.integers(SUITS)), 1_000, 1_000_000),
        "another suit than the one in sight": play(env, lambda seen, done: (int(seen[-1]) + 1) % SUITS, 1_000, 1_000_000),
        "the commonest of the last 32": play(env, lambda seen, done: int(np.bincount(seen[-AGO:]).argmax()), 1_000, 5_000_000),
        "what was dealt 31 steps ago": play(env, lambda seen, done: int(seen[-AGO]) if len(seen) >= AGO else 0, 100, 5_000_000),
    }


def taught(updates: int, batch: int = 32, hidden: int = 64, learning_rate: float = 3e-3) -> list[dict[str, float]]:
    """The returns of an LSTM that is told every right answer, over the last 100 of so many updates on fresh episodes."""
    torch.manual_seed(0)
    random, deck = np.random.default_rng(0), np.repeat(np.arange(SUITS), CARDS // SUITS)
    encoder, core, head = nn.Linear(SUITS, 64), nn.LSTM(64, hidden), nn.Linear(hidden, SUITS)
    parameters = [*encoder.parameters(), *core.parameters(), *head.parameters()]
    adam = torch.optim.Adam(parameters, lr=learning_rate)
    right, curve = [], []
    for update in range(updates):
        adam.param_groups[0]["lr"] = learning_rate * (1 - update / updates)
        dealt = torch.as_tensor(random.permuted(np.tile(deck, (batch, 1)), axis=1)).T  # [104, B]
        memory, _ = core(torch.relu(encoder(nn.functional.one_hot(dealt[:-1], SUITS).float())))
        logits, answers = head(memory)[AGO - 1 :].flatten(0, 1), dealt[: CARDS - AGO].flatten()
        loss = nn.functional.cross_entropy(logits, answers)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 10.0)
        adam.step()
        right.append(float((logits.argmax(-1) == answers).float().mean()))
        if (update + 1) % max(updates // 8, 1) == 0:
            curve.append({"steps": (update + 1) * batch * (CARDS - 1), "return": round(2 * float(np.mean(right[-100:])) - 1, 3)})
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lstm-updates", type=int, default=2_000)
    updates = parser.parse_args().lstm_updates
    torch.set_num_threads(1)
    import_popgym()
    found = {
        "popgym-PositionOnlyCartPoleEasy-v0": cartpole("popgym-PositionOnlyCartPoleEasy-v0", 0.0),
        "popgym-NoisyPositionOnlyCartPoleEasy-v0": cartpole("popgym-NoisyPositionOnlyCartPoleEasy-v0", 0.1),
        "popgym-RepeatPreviousMedium-v0": {**repeat_previous(), "LSTM told every answer": taught(updates)},
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
