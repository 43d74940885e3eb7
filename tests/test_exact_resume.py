"""A run killed with SIGKILL and resumed ends with the same bytes as one that never stopped."""

from __future__ import annotations

import zlib
from pathlib import Path

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
