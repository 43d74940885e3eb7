"""A network of one's own as a row of its own: DQN with a residual torso, by `register_algorithm(..., network=...)`.

A torso is any module from observations to features; the heads (scalar, categorical, quantile, dueling, noisy, ...) come with the package.
Importing this file registers the row, so the command line knows it too:

    rl-training --import examples.own_network train --config configs/dqn/cartpole.yaml --set algo=residual_dqn
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rl_training import ManagedAlgorithm, register_algorithm
from rl_training.models.heads import make_head
from rl_training.models.q_network import QNetwork
from rl_training.runtime.value_based import head_keywords


class ResidualTorso(nn.Module):
    """x ← x + W₂·relu(W₁·norm(x)), a few times: the sum lets gradients pass every block."""

    def __init__(self, obs_dim: int, width: int, blocks: int = 2) -> None:
        super().__init__()
        self.inlet = nn.Linear(obs_dim, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(blocks)
        )

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.inlet(obs.float())
        for block in self.blocks:
            features = features + block(features)
        return features.relu()


def build_network(settings: Any, spaces: Mapping[str, Any]) -> QNetwork:
    """`settings` are the row's (typed, checked), `spaces` what the environment is like: `obs_shape`, `obs_dtype`, `num_actions`."""
    width = settings.hidden_sizes[-1]
    head = make_head(settings.head, width, spaces["num_actions"], hidden_sizes=(), **head_keywords(settings))
    return QNetwork(ResidualTorso(spaces["obs_shape"][0], width), head)


register_algorithm(
    "residual_dqn",
    trainer="rl_training.runtime.dqn_trainer:train_dqn",
    network=build_network,
    summary="DQN with a residual torso",
    paper="arXiv:1512.03385",
)


class ResidualDQN(ManagedAlgorithm, row="residual_dqn"):
    """DQN with a residual torso."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    agent = ResidualDQN("CartPole-v1", hidden_sizes=[64], seed=args.seed, output_dir=args.output_dir)
    result = agent.learn(args.total_timesteps, quiet=False)
    metrics = agent.evaluate(args.eval_episodes)
    print(f"run directory: {result.run_dir}")
    print(f"return: {metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f} over {metrics['eval_episodes']} episodes")


if __name__ == "__main__":
    main()
