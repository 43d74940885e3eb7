"""Recurrent PPO (arXiv:2205.11104) on CartPole without its velocities, with the shipped config: train, then evaluate on fresh episodes."""

from __future__ import annotations

import argparse

from rl_training import RecurrentPPO
from rl_training.cli import load_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    config = load_config("configs/recurrent_ppo/cartpole_velocity_free.yaml")
    agent = RecurrentPPO(config, total_timesteps=args.total_timesteps, output_dir=args.output_dir, seed=args.seed)
    result = agent.learn(quiet=False)
    metrics = agent.evaluate(args.eval_episodes)
    print(f"run directory: {result.run_dir}")
    print(f"return: {metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f} over {metrics['eval_episodes']} episodes")


if __name__ == "__main__":
    main()
