"""The T-maze is what it says: solvable with memory in length + 1 steps, a coin toss without."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training.envs import make_envs
from rl_training.envs.memory import DOWN, FORWARD, UP, TMaze
from rl_training.errors import UserError


def play(length: int, policy: Any, seed: int) -> tuple[float, int]:
    """policy(obs, first_obs) -> action."""
    env = TMaze(length)
    first, _ = env.reset(seed=seed)
    obs, total, steps, over = first, 0.0, 0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy(obs, first))
        total, steps, over = total + reward, steps + 1, terminated or truncated
    return total, steps


def remember(obs: Any, first: Any) -> int:
    return FORWARD if not obs[2] else (UP if first[0] else DOWN)


@pytest.mark.parametrize("length", [1, 2, 10, 50])
def test_the_cue_remembered_pays_one_in_length_plus_one_steps(length: int) -> None:
    assert [play(length, remember, seed) for seed in range(20)] == [(1.0, length + 1)] * 20


def test_the_cue_forgotten_pays_half_of_the_time() -> None:
    # Whatever it chooses at the junction, its success is the share of cues that say so: half, within 4 standard deviations of 2,000 tosses.
    for arm in (UP, DOWN):
        wins = [play(3, lambda obs, _, arm=arm: arm if obs[2] else FORWARD, seed)[0] for seed in range(2000)]
        assert set(wins) == {0.0, 1.0} and abs(np.mean(wins) - 0.5) < 4 * 0.5 / 2000**0.5


def test_after_the_first_observation_nothing_tells_the_cue() -> None:
    # Two episodes with opposite cues, the same actions: every later observation and reward before the end is equal.
    seeds: dict[bool, int] = {}
    for seed in range(20):
        seeds.setdefault(bool(TMaze(4).reset(seed=seed)[0][0]), seed)
    traces = []
    for seed in seeds.values():
        env = TMaze(4)
        env.reset(seed=seed)
        traces.append([tuple(env.step(action)[0]) for action in (UP, FORWARD, DOWN, FORWARD, FORWARD, FORWARD, FORWARD)])
    assert len(traces) == 2 and traces[0] == traces[1]
    assert traces[0] == [(0, 0, 0)] * 5 + [(0, 0, 1)] * 2  # four steps forward, walls in between, then it stands at the junction


def test_an_episode_that_never_chooses_is_truncated_with_nothing() -> None:
    assert play(4, lambda obs, _: FORWARD, seed=0) == (0.0, 25)  # 5 * (4 + 1)
    env = TMaze(2, time_limit=3)
    env.reset(seed=0)
    assert [env.step(FORWARD)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    env.reset(seed=0)
    env.step(FORWARD)
    env.step(FORWARD)
    assert env.step(UP)[2:4] == (True, False)  # chosen in the last step: terminated, not truncated


@pytest.mark.parametrize("kwargs", [{"length": 0}, {"length": 2.5}, {"length": True}, {"length": 5, "time_limit": 5}])
def test_an_impossible_maze_is_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="TMaze"):
        TMaze(**kwargs)
    with pytest.raises(UserError, match="TMaze"):
        make_envs("rl_training/TMaze-v0", num_envs=1, seed=0, env_kwargs=kwargs)


def test_it_is_registered_with_gymnasium_and_made_by_its_name() -> None:
    check_env(gym.make("rl_training/TMaze-v0", length=3).unwrapped, skip_render_check=True)
    envs = make_envs("rl_training/TMaze-v0", num_envs=2, seed=0, env_kwargs={"length": 3})
    obs = envs.reset()
    first = obs.copy()
    for _ in range(4):
        step = envs.step(np.array([remember(o, f) for o, f in zip(obs, first, strict=True)]))
        obs = step.obs
    assert [(episode.episode_return, episode.length) for episode in step.episodes] == [(1.0, 4), (1.0, 4)]


@pytest.mark.skipif(importlib.util.find_spec("popgym") is not None, reason="POPGym is installed")
@pytest.mark.parametrize("env_id", ["popgym-RepeatPreviousEasy-v0", "popgym:popgym-RepeatPreviousEasy-v0"])
def test_popgym_without_its_extra_names_the_extra(env_id: str) -> None:
    with pytest.raises(UserError, match=r"rl-training\[memory\]"):
        make_envs(env_id, num_envs=1, seed=0)


def test_popgym_repeat_previous_runs_flattened_and_resumes() -> None:
    pytest.importorskip("popgym")

    def make() -> Any:
        return make_envs("popgym-RepeatPreviousEasy-v0", num_envs=2, seed=0, env_kwargs={"wrappers": ["flatten"]})

    envs = make()
    assert envs.reset().shape == (2, 4)
    lengths = []
    for t in range(70):
        lengths += [episode.length for episode in envs.step(np.full(2, t % 4)).episodes]
    assert lengths == [51, 51]
    resumed = make()
    assert resumed.load_state_dict(envs.state_dict()).restored.all()
    assert np.array_equal(envs.step(np.zeros(2, np.int64)).obs, resumed.step(np.zeros(2, np.int64)).obs)
