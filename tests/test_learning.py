"""Learning, in seconds: a chain whose Q* is known, for every feed-forward row; and CartPole well past chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chain import GAMMA, LENGTH, Chain, optimal_q
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import load_policy, train
from test_dqn_trainer_smoke import FEED_FORWARD


@pytest.mark.parametrize("algo", FEED_FORWARD)
def test_every_feed_forward_row_learns_the_chain(algo: str, tmp_path: Path) -> None:
    fixed = {**get_algorithm_spec(algo).parse({}).to_dict()}
    settings = {
        "hidden_sizes": [],  # linear on one-hot states: a table
        "learning_rate": 0.02,
        "lr_schedule": "linear",
        "gamma": GAMMA,
        "buffer_capacity": 5_000,
        "batch_size": 32,
        "learning_starts": 200,
        "train_frequency": 1,
        "target_update_interval": 50,
        # n-step returns are not corrected for exploration, so those rows explore little and are judged by the actions they take
        "epsilon_end": 0.05 if fixed["n_step"] > 1 else 0.5,
    }
    if fixed["head"] == "categorical":
        settings |= {"v_min": 0.0, "v_max": 1.0}
    if fixed["head"] == "implicit":
        settings |= {"num_quantiles": 8, "num_target_quantiles": 8, "num_acting_quantiles": 8}
    config = TrainConfig(
        algo=algo,
        env_id="callable:Chain",
        seed=1,
        total_timesteps=3_000,
        output_dir=str(tmp_path),
        eval_interval=0,
        checkpoint_interval=0,
        algo_kwargs=settings,
    )
    result = train(config, env=Chain)
    q_values, _ = load_policy(result.checkpoint_path).q_values(np.eye(LENGTH, dtype=np.float32)[:-1])
    optimal = optimal_q()
    np.testing.assert_array_equal(q_values.argmax(1), 1)
    np.testing.assert_allclose(q_values[:, 1], optimal[:, 1], atol=0.05)
    if fixed["n_step"] == 1 and not fixed["noisy"]:
        np.testing.assert_allclose(q_values[:, 0], optimal[:, 0], atol=0.08)
    assert result.metrics["eval_return_mean"] == 1.0


def test_dqn_learns_cartpole_well_past_chance(tmp_path: Path) -> None:
    """The shipped config, cut to 8,000 steps with its schedules: a random policy reaches about 22."""
    config = load_config("configs/n_step_dqn/cartpole.yaml", [f"output_dir={tmp_path}", "total_timesteps=8_000", "eval_interval=1_000"])
    result = train(config)
    assert result.metrics["best_eval_return_mean"] > 150
