"""An algorithm of one's own as a row: settings, TD rule, trainer. Loop, replay, checkpoints and command line stay as they are.

Expectile DQN: Q moves up to a higher target faster than down to a lower one (the expectile loss of arXiv:2110.06169 on DQN's TD error),

    L = |τ − 1{δ < 0}| · δ²,   δ = y − Q(s, a),

so τ = 1/2 is half the squared error and τ > 1/2 is optimistic. Importing this file registers the row:

    rl-training --import examples.own_algorithm train --config configs/dqn/cartpole.yaml --set algo=expectile_dqn
"""

from __future__ import annotations

import argparse
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from rl_training import ManagedAlgorithm, register_algorithm
from rl_training.algorithms import Bootstrap, Rule
from rl_training.algorithms.rules import bellman
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.settings import ValueSettings
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.run import TrainResult


class ExpectileSettings(ValueSettings):
    """DQN's settings and one more: configs, `--set` and keywords take it, and refuse what is out of range."""

    expectile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.7


class ExpectileRule(Rule):
    """The rule: what the target is, and the loss between it and Q(s, a), element by element."""

    def __init__(self, expectile: float) -> None:
        self.expectile = expectile

    def target(self, bootstrap: Bootstrap, rewards: Tensor, discounts: Tensor) -> Tensor:
        return bellman(rewards, discounts, bootstrap)

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> Tensor:
        delta = target - chosen
        weight = (self.expectile - (delta < 0).float()).abs()
        return weight * delta**2


def train_expectile(config: TrainConfig, run_suffix: str | None = None, **options: Any) -> TrainResult:
    """DQN's trainer with another rule."""
    settings = config.settings
    assert isinstance(settings, ExpectileSettings)  # the row says so
    return train_dqn(config, run_suffix, rule=ExpectileRule(settings.expectile), **options)


register_algorithm(
    "expectile_dqn",
    trainer=train_expectile,
    network="rl_training.runtime.dqn_trainer:build_network",
    summary="DQN by expectile regression",
    paper="arXiv:2110.06169",
    settings=ExpectileSettings,
    fixed={"head": "scalar"},
)


class ExpectileDQN(ManagedAlgorithm, row="expectile_dqn"):
    """DQN by expectile regression."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    agent = ExpectileDQN("CartPole-v1", expectile=0.6, seed=args.seed, output_dir=args.output_dir)
    result = agent.learn(args.total_timesteps, quiet=False)
    metrics = agent.evaluate(args.eval_episodes)
    print(f"run directory: {result.run_dir}")
    print(f"return: {metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f} over {metrics['eval_episodes']} episodes")


if __name__ == "__main__":
    main()
