"""A run killed with SIGKILL and resumed ends with the same bytes as one that never stopped."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from resume_harness import killed_and_resumed, run_config
from rl_training.experiment.registry import algorithm_names


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("algo", algorithm_names())
def test_killed_run_resumes_to_identical_files(algo: str, num_envs: int, tmp_path: Path) -> None:
    config = run_config(algo, num_envs=num_envs, total_timesteps=900)
    outcome = killed_and_resumed(config, tmp_path, kills=2, seed=zlib.crc32(f"{algo}{num_envs}".encode()))
    assert outcome.differences == (), f"killed at {outcome.kills}"
    assert outcome.kills, "the run was over before the first kill: the test showed nothing"


@pytest.mark.parametrize("algo", ["n_step_dqn", "ppo"])
def test_a_masked_run_resumes_to_identical_files(algo: str, tmp_path: Path) -> None:
    """Its masks come back with its episodes: n-step windows and rollouts under way hold them too."""
    config = run_config(algo, num_envs=2, total_timesteps=600)
    config |= {"env_id": "Taxi-v4", "env_kwargs": {"wrappers": ["flatten", {"time_limit": {"max_steps": 20}}]}}
    outcome = killed_and_resumed(config, tmp_path, kills=1, seed=zlib.crc32(algo.encode()))
    assert outcome.differences == (), f"killed at {outcome.kills}"
    assert outcome.kills, "the run was over before the first kill: the test showed nothing"


@pytest.mark.parametrize("algo", ["n_step_dqn", "r2d2"])
def test_a_normalised_run_resumes_to_identical_files(algo: str, tmp_path: Path) -> None:
    """The replay holds raw values, and the statistics they are learned by go on where they were."""
    config = run_config(algo, num_envs=2, total_timesteps=600)
    config["env_kwargs"] = {"wrappers": ["normalize_observation", "normalize_reward"]}
    outcome = killed_and_resumed(config, tmp_path, kills=1, seed=zlib.crc32(algo.encode()))
    assert outcome.differences == (), f"killed at {outcome.kills}"
    assert outcome.kills, "the run was over before the first kill: the test showed nothing"


def atari_config(algo: str, vectorization: str, *, total_timesteps: int, screen_size: int = 84) -> dict[str, Any]:
    config = run_config(algo, num_envs=2, total_timesteps=total_timesteps)
    config |= {"env_id": "ALE/Pong-v5", "vectorization": vectorization, "eval_interval": 0, "eval_episodes": 1, "eval_max_steps": 10}
    config["env_kwargs"] = {"preset": "dopamine", "noop_max": 8, "screen_size": screen_size}
    config["algo_kwargs"] |= {"torso": "nature", "torso_padding": "same", "initialization": "variance_scaling", "hidden_sizes": [16]}
    return config


@pytest.mark.parametrize(
    ("algo", "vectorization", "precision"),
    [("dqn", "sync", "auto"), ("dqn", "sync", "bf16"), ("rainbow_dqn", "async", "auto"), ("r2d2", "auto", "auto")],
)
def test_a_killed_atari_run_resumes_to_identical_files(algo: str, vectorization: str, precision: str, tmp_path: Path) -> None:
    """From saved emulators: each game has taken 75 steps at the first checkpoint. 36 pixels are the fewest the network reads."""
    pytest.importorskip("ale_py")
    config = atari_config(algo, vectorization, total_timesteps=300, screen_size=36) | {"precision": precision}
    outcome = killed_and_resumed(config, tmp_path, kills=1, seed=0)  # at step 197, between two checkpoints
    assert outcome.differences == (), f"killed at {outcome.kills}"
    assert outcome.kills, "the run was over before the first kill: the test showed nothing"


@pytest.mark.slow
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("algo", ["dqn", "rainbow_dqn", "r2d2", "ppo"])
def test_a_killed_atari_run_of_full_size_resumes_to_identical_files(algo: str, vectorization: str, tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    config = atari_config(algo, vectorization, total_timesteps=600)
    if algo == "ppo":
        config |= {"env_id": "ALE/Breakout-v5", "env_kwargs": {"preset": "sb3"}}  # with lives to lose
    outcome = killed_and_resumed(config, tmp_path, kills=2, seed=zlib.crc32(f"{algo}{vectorization}".encode()))
    assert outcome.differences == (), f"killed at {outcome.kills}"
    assert outcome.kills, "the run was over before the first kill: the test showed nothing"
