"""QR-DQN on an Atari game with Dopamine's settings: train, evaluate the greedy policy, and record one game in colour.

Needs the extras atari and video: pip install "rl-training[atari,video]". A GPU takes minutes for a million steps; without one the script
takes fewer games at once and a smaller replay, and hours.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from rl_training import QRDQN
from rl_training.cli import load_config
from rl_training.runtime.workflows import evaluate_checkpoint

WITHOUT_GPU = ("num_envs=8", "vectorization=auto", "algo_kwargs.buffer_capacity=100000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="pong", choices=["pong", "boxing", "breakout", "freeway", "asterix", "qbert"])
    parser.add_argument("--total-timesteps", type=int, default=1_000_000)
    parser.add_argument("--eval-episodes", type=int, default=5)
    parser.add_argument("--eval-max-steps", type=int, default=27_000)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="an .mp4 file")
    args = parser.parse_args()

    config = load_config(f"configs/qr_dqn/atari_{args.game}.yaml", () if torch.cuda.is_available() else WITHOUT_GPU)
    options = {"output_dir": args.output_dir, "seed": args.seed, "eval_max_steps": args.eval_max_steps}
    agent = QRDQN(config, total_timesteps=args.total_timesteps, **options)
    result = agent.learn(quiet=False)
    metrics = agent.evaluate(args.eval_episodes)
    print(f"run directory: {result.run_dir}")
    print(f"return: {metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f} over {metrics['eval_episodes']} episodes")
    if args.record is not None:
        evaluate_checkpoint(result.checkpoint_path, num_episodes=1, record=args.record)
        print(f"recorded: {args.record}")


if __name__ == "__main__":
    main()
