"""Discrete(n, start=k): inside, actions count from 0; environments, users and the command line see k … k + n − 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.envs.spaces import describe_action_space, first_action
from rl_training.envs.vector import VectorEnvs
from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.experiment.saved_spaces import require_saved_spaces
from rl_training.runtime.workflows import predict
from test_public_api import TINY, managed_class

OBS = [0.25, -0.5]


class FromFive(gym.Env[Any, Any]):
    """One step an episode. The last action, 7, is the right one; any that is not in the space fails."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.array(OBS, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return np.array(OBS, np.float32), float(action == 7), True, False, {}


def agent_of(row: str, folder: Path, **keywords: Any) -> Any:
    cls = managed_class(row)
    known = TrainConfig.model_fields.keys() | get_algorithm_spec(row).settings.model_fields.keys()
    return cls(FromFive, **{key: value for key, value in {**TINY, "output_dir": folder, **keywords}.items() if key in known})


@pytest.mark.parametrize("row", algorithm_names())
def test_every_row_answers_with_the_environments_own_actions(row: str, tmp_path: Path) -> None:
    agent = agent_of(row, tmp_path)
    batch = np.array([OBS, OBS, OBS], np.float32)
    for deterministic in (True, False):
        one, _ = agent.predict(batch[0], deterministic=deterministic)
        several, _ = agent.predict(batch, deterministic=deterministic)
        assert FromFive.action_space.contains(one) and all(FromFive.action_space.contains(action) for action in several)


@pytest.mark.parametrize("row", ["dqn", "drqn", "ppo", "recurrent_ppo"])
def test_a_run_learns_the_action_and_says_it(row: str, tmp_path: Path) -> None:
    settings = {"learning_rate": 3e-2, "num_steps": 16} if "ppo" in row else {"learning_rate": 3e-2, "exploration_fraction": 0.5}
    agent = agent_of(row, tmp_path, **settings)
    result = agent.learn(600)
    assert result.metrics["eval_return_mean"] == 1.0  # evaluation takes 7
    assert agent.predict(OBS)[0] == 7
    assert agent.evaluate(3)["eval_return_mean"] == 1.0
    assert open_checkpoint(result.checkpoint_path).manifest["spaces"]["action"] == {"kind": "discrete", "n": 3, "start": 5}
    (answer,) = predict(result.checkpoint_path, [OBS])
    numbers = answer["probabilities"] if "ppo" in row else answer["q_values"]
    assert answer["action"] == 7 == 5 + int(np.argmax(numbers))


def test_a_native_vector_environment_gets_its_own_actions_too() -> None:
    seen: list[Any] = []

    class Vector(VectorEnv[Any, Any, Any]):
        num_envs = 2
        single_observation_space = FromFive.observation_space
        single_action_space = FromFive.action_space
        metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros((2, 2), np.float32), {}

        def step(self, actions: Any) -> Any:
            seen.append(np.asarray(actions).tolist())
            return np.zeros((2, 2), np.float32), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}

    envs = VectorEnvs(Vector(), replayable=False)
    envs.reset()
    actions = np.array([0, 2])
    envs.step(actions)
    assert seen == [[5, 7]] and actions.tolist() == [0, 2]  # what is learned from stays as it was


def test_only_discrete_actions_have_a_first_one() -> None:
    spaces: list[tuple[gym.Space[Any], int]] = [
        (gym.spaces.Discrete(3), 0),
        (gym.spaces.Discrete(2, start=-1), -1),
        (gym.spaces.MultiDiscrete([2, 2], start=[1, 4]), 0),  # their distribution knows
        (gym.spaces.Box(0.0, 1.0, (2,)), 0),
    ]
    for space, first in spaces:
        assert first_action(describe_action_space(space)) == first
    assert first_action({"kind": "discrete", "n": 3}) == 0  # as checkpoints had it before
    with pytest.raises(CheckpointError, match=r"start must be a whole number"):
        action = {"kind": "discrete", "n": 3, "start": [5]}
        require_saved_spaces({"obs_shape": [2], "obs_dtype": "float32", "num_actions": 3, "action": action}, source="manifest.json")
