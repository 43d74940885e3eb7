"""`train_drqn` end to end, small: the run it leaves, the states it stores, the options it takes, and that it remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from recurrent_runs import Keep, small_config
from rl_training import DQN, DRQN
from rl_training.errors import ConfigError, SpaceError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.drqn_trainer import train_drqn
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy


def test_it_trains_and_leaves_a_whole_run(tmp_path: Path) -> None:
    result = train_drqn(small_config(tmp_path, "drqn", num_envs=3), run_suffix="smoke")
    assert result.run_dir.name.startswith("drqn__CartPole-v1__seed5__") and result.run_dir.name.endswith("__smoke")
    assert result.metrics["global_step"] == 300 and result.metrics["eval_episodes"] == 2
    assert result.metrics["buffer_size"] == 300  # every step is in a stored or an open chunk
    assert result.metrics["num_updates"] == 51  # multiples of 4 in [100, 300]
    assert result.checkpoint_path == result.run_dir / "checkpoints" / "step_300"
    assert evaluate_checkpoint(result.checkpoint_path, num_episodes=2, seed=5)["eval_return_mean"] == result.metrics["eval_return_mean"]


def test_chunks_hold_the_state_the_network_acted_with(tmp_path: Path) -> None:
    # Without updates the weights stay: the state stored with each chunk must be what unrolling its episode up to there gives.
    keep = Keep()
    train_drqn(small_config(tmp_path, "drqn", algo_kwargs={"learning_starts": 1_000}), callbacks=[keep])
    network, replay = keep.parts.learner.q_network, keep.parts.replay
    stored: dict[str, torch.Tensor] = {}
    replay._ring.storage.gather(np.arange(len(replay)), stored)  # in the order they were stored
    chunks = replay._time_first(stored)
    state = network.initial_state(1)
    later = 0
    for i in range(len(replay)):
        first = bool(chunks["episode_starts"][0, i])
        state = network.initial_state(1) if first else state
        later += not first
        torch.testing.assert_close(chunks["initial_h"][:, i : i + 1], state[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(chunks["initial_c"][:, i : i + 1], state[1], atol=1e-5, rtol=1e-4)
        with torch.no_grad():
            _, state = network.unroll(chunks["obs"][: int(chunks["mask"][:, i].sum()), i : i + 1], state)
    assert later > 10, "no chunk inside an episode: the test showed nothing"


@pytest.mark.parametrize(
    "options",
    [
        {"burn_in": 2, "sequence_overlap": 3, "n_step": 3},
        {"recurrent_num_layers": 2, "dueling": True, "double_q": True, "stored_state": False},
        {"head": "quantile", "num_quantiles": 5, "noisy": True, "head_hidden_sizes": [8]},
        {"head": "categorical", "v_min": -5.0, "v_max": 100.0, "prioritized": True, "tau": 0.5},
        {"head": "implicit", "num_quantiles": 4, "num_target_quantiles": 4, "lr_schedule": "linear", "value_rescaling": True},
    ],
    ids=lambda options: next(iter(options)) + str(options.get("head", "")),
)
def test_parts_combine(options: dict[str, Any], tmp_path: Path) -> None:
    result = train_drqn(small_config(tmp_path, "drqn", total_timesteps=160, num_envs=2, algo_kwargs=options))
    assert result.metrics["num_updates"] == 16
    actions, state = load_policy(result.checkpoint_path).predict(np.zeros((3, 2), np.float32))
    assert actions.shape == (3,) and state[0].shape == (options.get("recurrent_num_layers", 1), 3, 8)


def test_predict_takes_and_returns_the_state(tmp_path: Path) -> None:
    agent = DRQN(small_config(tmp_path, "drqn", total_timesteps=120))
    agent.learn()
    network = load_policy(agent.checkpoint_path).network  # type: ignore[arg-type]  # set by learn
    obs = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    expected = network.q_values_sequence(torch.from_numpy(obs)[:, None], initial_state=network.initial_state(1)).argmax(-1)[:, 0]
    state = None
    for t in range(4):
        action, state = agent.predict(obs[t], state)
        assert action == int(expected[t])
    fresh = agent.predict(obs[0])[1]
    started_over = agent.predict(obs[0], state, episode_start=True)[1]
    carried = agent.predict(obs[0], state)[1]
    assert torch.equal(started_over[0], fresh[0]) and not torch.equal(carried[0], fresh[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 4, "burn_in": 4}, r"sequence_length must be > burn_in, got 4 and 4"),
        ({"sequence_length": 6, "burn_in": 2, "n_step": 4}, r"n_step must be < sequence_length - burn_in, got 4 and 4"),
        ({"sequence_length": 6, "sequence_overlap": 6}, r"sequence_overlap must be < sequence_length, got 6 and 6"),
        ({"priority_eta": 0.5}, r"priority_eta needs prioritized: true"),
        ({"recurrent_hidden_size": 0}, r"recurrent_hidden_size"),
        ({"sequence_lenght": 9}, r"did you mean sequence_length\?"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        small_config(tmp_path / "out", "drqn", algo_kwargs=settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("env_id", "space"), [("Pendulum-v1", "action space"), ("FrozenLake-v1", "observation space")])
def test_unsupported_spaces_are_refused(env_id: str, space: str, tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=f"drqn cannot .* the {space}"):
        train_drqn(small_config(tmp_path / "out", "drqn", env_id=env_id, env_kwargs={}))
    assert not (tmp_path / "out").exists()


class Recall(gym.Env[Any, Any]):
    """A cue of ±1 is seen once; two blank steps later the action it named pays 1. Without memory the best return is 1/2 on average."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.cue, self.t = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        done = self.t == 3
        return np.array([0, self.t / 3], np.float32), float(done and action == self.cue), done, False, {}


@pytest.mark.parametrize("managed", [DRQN, DQN])
def test_a_cue_is_remembered_by_drqn_and_by_dqn_not(managed: type[DRQN] | type[DQN], tmp_path: Path) -> None:
    common = {"learning_rate": 1e-2, "batch_size": 32, "learning_starts": 200, "train_frequency": 4, "target_update_interval": 100}
    memory = {"hidden_sizes": (), "features_dim": 16, "recurrent_hidden_size": 16, "sequence_length": 4} if managed is DRQN else {}
    quiet = {"eval_interval": 0, "checkpoint_interval": 0, "eval_episodes": 1, "output_dir": tmp_path, "num_envs": 4, "threads": 1}
    agent = managed(Recall, seed=1, total_timesteps=2_000, **common, **memory, **quiet)
    agent.learn()
    success = agent.evaluate(64)["eval_return_mean"]
    assert success > 0.95 if managed is DRQN else success < 0.75


def test_the_defaults_are_narrow(tmp_path: Path) -> None:
    settings = TrainConfig(algo="drqn", env_id="CartPole-v1", seed=0, total_timesteps=1, output_dir=str(tmp_path)).settings.to_dict()
    assert (settings["burn_in"], settings["sequence_overlap"], settings["value_rescaling"], settings["n_step"]) == (0, 0, False, 1)
    assert settings["stored_state"] is True and settings["prioritized"] is False
