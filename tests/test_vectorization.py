"""Backends by name, through whole runs: the same learning where episodes can be played again, and where not the run says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from checkpoint_files import edit
from command_line import Cli
from rl_training import DQN, DRQN
from rl_training.envs.vector import RESTARTS
from rl_training.errors import SpaceError

FILES = ("model.safetensors", "training.safetensors", "replay.safetensors")
SMALL: dict[str, Any] = {
    "hidden_sizes": [8],
    "batch_size": 8,
    "buffer_capacity": 1_000,
    "learning_starts": 40,
    "eval_episodes": 1,
    "eval_interval": 0,
    "checkpoint_interval": 0,
    "num_envs": 3,
    "total_timesteps": 240,
}


def trained(tmp_path: Path, vectorization: str, *lengths: int, kind: Any = DQN, **keywords: Any) -> Any:
    agent = kind("CartPole-v1", output_dir=tmp_path / f"{vectorization}{len(lengths)}", vectorization=vectorization, **SMALL, **keywords)
    for length in lengths:
        result = agent.learn(length)
    return result


def files(result: Any) -> dict[str, bytes]:
    return {name: (result.checkpoint_path / name).read_bytes() for name in FILES}


def metadata(result: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((result.run_dir / "metadata.json").read_text())
    return loaded


def test_sync_and_async_learn_what_auto_learns_and_resume_exactly(tmp_path: Path) -> None:
    usual = files(trained(tmp_path, "auto", 240))
    for vectorization in ("sync", "async"):
        interrupted = trained(tmp_path, vectorization, 120, 120)
        assert files(interrupted) == usual
        assert metadata(interrupted)["resume"] == "exact on the CPU"
        assert metadata(interrupted)["vectorization"].startswith(vectorization)


@pytest.mark.parametrize("kind", [DQN, DRQN])
def test_native_runs_and_says_that_its_episodes_restart_on_resume(tmp_path: Path, kind: Any) -> None:
    keywords: dict[str, Any] = {"features_dim": 8, "recurrent_hidden_size": 8, "sequence_length": 8} if kind is DRQN else {}
    result = trained(tmp_path, "native", 120, 120, kind=kind, **keywords)
    assert metadata(result)["resume"] == RESTARTS and metadata(result)["vectorization"].startswith("native")
    # Reset steps do not count, so a vector step takes 1 to 3: each of the two parts of 120 may end up to 2 steps late.
    assert 240 <= result.metrics["global_step"] <= 244
    # What was open at the interruption is forgotten: at most a chunk of 7 steps in each of 3 environments (a one-step window: none).
    assert result.metrics["global_step"] - result.metrics["buffer_size"] <= (21 if kind is DRQN else 0)
    # Not resumed, native is as repeatable as the others.
    again = [trained(tmp_path / name, "native", 240, kind=kind, **keywords) for name in ("a", "b")]
    assert files(again[0]) == files(again[1])


def test_a_native_checkpoint_cannot_go_on_with_a_backend_that_plays_episodes_again(cli: Cli) -> None:
    done = cli("train", "--config", "small.yaml", "--quiet", "--set", "vectorization=native")
    assert done.code == 0, done.err
    edit(Path(done.out.strip()), lambda manifest: manifest["config"].update(vectorization="auto"))
    said = cli.refused("resume", "--checkpoint", done.out.strip(), "--total-timesteps", "200")
    assert "it was made with vectorization native" in said


class Choices(gym.Env[Any, Any]):
    """Two things to decide at once."""

    observation_space = gym.spaces.Dict(place=gym.spaces.Discrete(3), speed=gym.spaces.Box(-1, 1, (2,), np.float32))
    action_space: gym.Space[Any] = gym.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return {"place": 1, "speed": np.array([0.25, -0.5], np.float32)}, {}

    def step(self, action: Any) -> Any:
        return {"place": 2, "speed": np.zeros(2, np.float32)}, 1.0, bool(action), False, {}


class OneChoice(Choices):
    action_space = gym.spaces.Discrete(2)


def test_multi_discrete_actions_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    agent = DQN(Choices, output_dir=tmp_path / "runs", env_kwargs={"wrappers": ["flatten"]})
    for ask in (lambda: agent.learn(10), lambda: agent.predict(np.zeros(5, np.float32))):
        with pytest.raises(SpaceError, match=r"dqn cannot act in the action space MultiDiscrete\(\[2 3\]\): it takes Discrete"):
            ask()
    assert not (tmp_path / "runs").exists()


def test_a_dict_observation_is_refused_with_the_remedy_and_learned_from_with_it(tmp_path: Path) -> None:
    small = {**SMALL, "total_timesteps": 60, "learning_starts": 20}
    with pytest.raises(SpaceError, match="`flatten`"):
        DQN(OneChoice, output_dir=tmp_path, **small).learn()
    agent = DQN(OneChoice, output_dir=tmp_path, env_kwargs={"wrappers": ["flatten"]}, **small)
    agent.learn()
    assert agent.predict(np.zeros(5, np.float32))[0] in (0, 1)
