"""An environment of one's own: a callable that makes it goes where an environment's id goes.

The run's config then holds only the callable's name, so whoever loads or resumes the run passes it again as `env`. To have the
environment in a config file instead, register it with Gymnasium and name it `module:Id`:

    rl-training train --config configs/dqn/cartpole.yaml --set env_id=examples.own_environment:Corridor-v0
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training import DQN


class Corridor(gym.Env[np.ndarray[Any, Any], int]):
    """Walk right to the end: reward 1 and termination there, −0.01 for every step before; the start is drawn anew each episode."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._place = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)  # every draw from self.np_random: that is what makes a run repeatable and its resume exact
        self._place = int(self.np_random.integers(self.length // 2))
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place = max(0, self._place + (1 if action == 1 else -1))
        arrived = self._place == self.length
        return self._observe(), 1.0 if arrived else -0.01, arrived, False, {}

    def _observe(self) -> Any:
        return np.array([self._place / self.length], np.float32)


def make_corridor(length: int = 8) -> gym.Env[Any, Any]:
    """Any callable will do; `env_kwargs` goes to it. The time limit truncates: the value of the last state is still bootstrapped."""
    return gym.wrappers.TimeLimit(Corridor(length), max_episode_steps=50)


if "Corridor-v0" not in gym.registry:  # run as a script, this file may be imported a second time, by its name
    gym.register("Corridor-v0", entry_point=Corridor, max_episode_steps=50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=3_000)
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    keywords = {"hidden_sizes": [32], "learning_starts": 200, "target_update_interval": 100, "eval_interval": 1_000}
    agent = DQN(make_corridor, env_kwargs={"length": 6}, seed=args.seed, output_dir=args.output_dir, **keywords)
    result = agent.learn(args.total_timesteps, quiet=False)
    loaded = DQN.load(result.checkpoint_path, env=make_corridor)  # the callable is not saved: pass it again
    metrics = loaded.evaluate(args.eval_episodes)
    print(f"run directory: {result.run_dir}")
    print(f"return: {metrics['eval_return_mean']:.3f} ± {metrics['eval_return_std']:.3f} over {metrics['eval_episodes']} episodes")


if __name__ == "__main__":
    main()
