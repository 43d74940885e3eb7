"""MinAtar's games by id: bool images, their own conventions, and episodes that can be played again."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.factory import find_env, make_envs
from rl_training.envs.minatar import GAMES, PREFIX, conventions, register_games
from rl_training.errors import UserError
from rl_training.experiment.config import load_config

IDS = [f"{PREFIX}{game.title().replace('_', '')}-v1" for game in GAMES]


def test_without_its_extra_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar.gym", None)
    with pytest.raises(UserError, match=r'need the extra `minatar`: pip install "rl-training\[minatar\]"'):
        find_env("MinAtar/Breakout-v1")


def test_a_game_that_is_not_there_is_said_with_the_nearest() -> None:
    pytest.importorskip("minatar")
    with pytest.raises(UserError, match=r"did you mean MinAtar/Breakout-v\d\?"):
        find_env("MinAtar/Breakot-v1")


@pytest.mark.parametrize("env_id", IDS)
def test_episodes_are_played_again_from_seed_and_actions(env_id: str) -> None:
    """Through several episodes, so that the sticky action has something to remember: it must not, over an episode's start."""
    pytest.importorskip("minatar")

    def make() -> Any:
        return make_envs(env_id, num_envs=2, seed=5)

    envs, rng = make(), np.random.default_rng(0)
    obs, n = envs.reset(), envs.single_action_space.n
    assert obs.shape[2:] == (10, 10) and obs.dtype == np.uint8 and set(np.unique(obs)) <= {0, 1} and envs.image.high == 1
    for point in range(4):
        for _ in range(60):
            envs.step(rng.integers(n, size=2))
        resumed = make()
        assert resumed.load_state_dict(envs.state_dict()).restored.all(), point
        for _ in range(20):  # sticky actions and the game's own draws go on in step
            actions = rng.integers(n, size=2)
            mine, other = envs.step(actions), resumed.step(actions)
            np.testing.assert_array_equal(mine.obs, other.obs)
            np.testing.assert_array_equal(mine.rewards, other.rewards)


def test_the_last_action_of_an_episode_does_not_reach_the_next() -> None:
    """Always sticky, an episode repeats its first `last action` for ever: that is none, whatever the episode before did."""
    pytest.importorskip("minatar")
    register_games()
    env = gym.make("MinAtar/Breakout-v1", sticky_action_prob=1.0)
    traces = []
    for last in (0, 1):
        env.unwrapped.game.last_action = last  # type: ignore[attr-defined]
        first, _ = env.reset(seed=3)
        traces.append([first, *(env.step(1)[0] for _ in range(3))])
    np.testing.assert_array_equal(*traces)


def test_what_is_minatars_own_is_said() -> None:
    assert conventions("MinAtar/Breakout-v1", {}).endswith("repeated with probability 0.1, difficulty ramping is on")
    assert "probability 0.0" in conventions("MinAtar/Breakout-v1", {"sticky_action_prob": 0.0}) and not conventions("CartPole-v1", {})


@pytest.mark.parametrize("row", ["dqn", "qr_dqn", "iqn", "rainbow_dqn", "r2d2", "ppo"])
@pytest.mark.parametrize("game", GAMES)
def test_every_game_has_its_configs(row: str, game: str) -> None:
    config = load_config(f"{row}/minatar_{game}.yaml")
    assert config.env_id in IDS and config.algo == row and config.total_timesteps == 1_000_000
    if row != "ppo":
        assert config.settings.to_dict()["train_frequency"] == 4
