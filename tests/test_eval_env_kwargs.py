"""`eval_env_kwargs`: evaluations in an environment made otherwise than the training's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import Cli
from rl_training.experiment.config import load_config
from rl_training.runtime.workflows import evaluate_checkpoint, train
from test_dqn_trainer_smoke import smoke_config


def test_evaluations_play_in_the_other_environment(tmp_path: Path) -> None:
    config = smoke_config(
        tmp_path, env_kwargs={"max_episode_steps": 30, "sutton_barto_reward": True}, eval_env_kwargs={"max_episode_steps": 4}
    )
    result = train(config)
    assert result.metrics["eval_length_mean"] == 4  # CartPole falls after 8 steps at the earliest
    assert evaluate_checkpoint(result.run_dir, num_episodes=3)["eval_length_mean"] == 4
    assert result.metrics["eval_return_mean"] == 0  # and the other keywords are the training's: here, 0 until it falls
    assert load_config(result.run_dir / "config.yaml").eval_env_kwargs == {"max_episode_steps": 4}
    assert config.keywords_of_evaluation == {"max_episode_steps": 4, "sutton_barto_reward": True}


@pytest.mark.parametrize(
    ("eval_env_kwargs", "message"),
    [
        ({"wrappers": [{"keep": {"indices": [0, 2]}}]}, "eval_env_kwargs: evaluation has obs_shape [2], and training [4]"),
        ({"wrappers": ["normalize_observation"]}, "eval_env_kwargs: evaluation has normalized True, and training False"),
        ({"no_such_keyword": 1}, "eval_env_kwargs: evaluation's environment: environment CartPole-v1 cannot be made with env_kwargs"),
        ({"wrappers": ["nothing"]}, "nothing"),
        (3, "eval_env_kwargs must be a mapping, got 3"),
    ],
)
def test_one_that_the_network_cannot_act_in_is_refused_before_anything_is_written(eval_env_kwargs: Any, message: str, cli: Cli) -> None:
    text = yaml.safe_dump(eval_env_kwargs, default_flow_style=True).split("\n")[0]
    assert message in cli.refused("train", "--config", "small.yaml", "--set", f"eval_env_kwargs={text}")
