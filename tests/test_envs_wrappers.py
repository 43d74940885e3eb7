"""Wrappers by name: their closed forms, and normalisation kept by the adapter."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rl_training.envs import make_envs, register_wrapper
from rl_training.envs.normalize import ObservationNormalizer, RewardNormalizer, RunningMoments
from rl_training.envs.wrappers import _TABLE, parse_wrappers, wrapper_names
from rl_training.errors import SpaceError, UserError


class Counting(gym.Env[Any, Any]):
    """Observes (t, 10 t, 100 t); reward t / 2; truncated after 4 steps."""

    observation_space = gym.spaces.Box(-1000, 1000, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)
    time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._observe(), self.time / 2, False, self.time == 4, {}

    def _observe(self) -> Any:
        return np.array([1, 10, 100], np.float32) * self.time


def counting(*wrappers: Any, num_envs: int = 1, env: Any = Counting, **kwargs: Any) -> Any:
    return make_envs(env, num_envs=num_envs, seed=0, env_kwargs={"wrappers": list(wrappers)}, **kwargs)


def act(action: int, num_envs: int = 1) -> Any:
    return np.full(num_envs, action, np.int64)


def test_keep_takes_the_named_entries() -> None:
    envs = counting({"keep": {"indices": [0, 2]}})
    envs.reset()
    assert envs.single_observation_space.shape == (2,)
    assert envs.step(act(0)).obs.tolist() == [[1, 100]]


def test_velocity_free_cartpole_sees_position_and_angle() -> None:
    full, kept = make_envs("CartPole-v1", num_envs=1, seed=0), counting({"keep": {"indices": [0, 2]}}, env="CartPole-v1")
    assert np.array_equal(full.reset()[:, [0, 2]], kept.reset())


def test_frame_stack_joins_vectors_oldest_first_and_repeats_the_first_at_a_start() -> None:
    envs = counting({"keep": {"indices": [0]}}, {"frame_stack": {"size": 3}})
    assert envs.reset().tolist() == [[0, 0, 0]]
    assert [envs.step(act(0)).obs.tolist()[0] for _ in range(3)] == [[0, 0, 1], [0, 1, 2], [1, 2, 3]]
    end = envs.step(act(0))
    assert end.final_obs.tolist() == [[2, 3, 4]]
    assert end.obs.tolist() == [[0, 0, 0]]  # nothing of the last episode is left


def test_frame_stack_of_images_is_the_adapters() -> None:
    class Image(Counting):
        observation_space = gym.spaces.Box(0, 255, (2, 2), np.uint8)

    with pytest.raises(UserError, match=r"for images say env_kwargs\.frame_stack: 2"):
        make_envs(Image, num_envs=1, seed=0, env_kwargs={"wrappers": [{"frame_stack": {"size": 2}}]})


def test_append_action_reward_is_zero_at_a_start_and_one_hot_after() -> None:
    envs = counting({"keep": {"indices": [0]}}, "append_action_reward")
    assert envs.reset().tolist() == [[0, 0, 0, 0, 0]]
    assert envs.step(act(2)).obs.tolist() == [[1, 0, 0, 1, 0.5]]
    assert envs.step(act(0)).obs.tolist() == [[2, 1, 0, 0, 1.0]]
    envs.step(act(0))
    end = envs.step(act(1))
    assert end.final_obs.tolist() == [[4, 0, 1, 0, 2.0]] and end.obs.tolist() == [[0, 0, 0, 0, 0]]


def test_flatten_makes_discrete_observations_one_hot() -> None:
    class Cards(Counting):
        observation_space = gym.spaces.Discrete(6)  # type: ignore[assignment]

        def _observe(self) -> Any:
            return self.time

    envs = counting("flatten", env=Cards)
    envs.reset()
    obs = envs.step(act(0)).obs
    assert obs.dtype == np.float32 and obs.tolist() == [[0, 1, 0, 0, 0, 0]]


def test_time_limit_truncates() -> None:
    envs = counting({"time_limit": {"max_steps": 2}})
    envs.reset()
    assert [bool(envs.step(act(0)).truncated[0]) for _ in range(4)] == [False, True, False, True]


def test_actions_that_do_not_start_at_zero_are_counted_from_zero() -> None:
    class Offset(Counting):
        action_space = gym.spaces.Discrete(2, start=5)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action)
            return np.full(3, action, np.float32), 0.0, False, False, {}

    envs = counting("append_action_reward", env=Offset)
    envs.reset()
    assert envs.single_action_space == gym.spaces.Discrete(2, start=5)  # the environment's own
    assert envs.step(act(1)).obs.tolist() == [[6, 6, 6, 0, 1, 0]]


def test_a_wrapper_can_be_added_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.envs.wrappers._TABLE", dict(_TABLE))  # other tests of this process read the table

    class Negate(gym.ObservationWrapper[Any, Any, Any]):
        def observation(self, observation: Any) -> Any:
            return -observation

    register_wrapper("negate", lambda env: Negate(env))
    envs = counting("negate")
    envs.reset()
    assert envs.step(act(0)).obs.tolist() == [[-1, -10, -100]]
    assert "negate" in wrapper_names()
    with pytest.raises(UserError, match="already"):
        register_wrapper("keep", lambda env: env)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["kep"], "no wrapper is named 'kep'; did you mean 'keep'"),
        ([{"keep": {"indexes": [0]}}], "keep has no argument 'indexes'; did you mean 'indices'"),
        (["keep"], "keep needs indices"),
        ([{"flatten": {"size": 1}}], "flatten has no argument 'size'; it takes none"),
        ([{"keep": [0]}], "must be a mapping"),
        ([{"keep": {}, "flatten": {}}], "an entry is"),
        ([3], "an entry is"),
        ("keep", "must be a list"),
        ({"keep": {}}, "must be a list"),
        (["normalize_observation", "flatten"], "come last"),
        ([{"normalize_observation": {"clip": -1.0}}], "normalize_observation: clip must be a number above 0, not -1.0"),
        ([{"normalize_observation": {"clip": "ten"}}], "clip must be a number above 0, not 'ten'"),
        ([{"normalize_observation": {"eps": None}}], "eps must be a number above 0, not None"),
        ([{"normalize_reward": {"eps": float("nan")}}], "eps must be a number above 0, not nan"),
        ([{"normalize_reward": {"gamma": 2}}], "normalize_reward: gamma must be a number from 0 to 1, not 2"),
        (["normalize_reward", "normalize_reward"], "each once"),
        ([{"normalize_reward": {"update": False}}], "no argument 'update'"),
    ],
)
def test_a_wrong_entry_is_refused_with_what_is_near(entries: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_wrappers(entries)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"keep": {"indices": [3]}}, "from 0 to 2"),
        ({"keep": {"indices": []}}, "from 0 to 2"),
        ({"keep": {"indices": [True]}}, "from 0 to 2"),
        ({"frame_stack": {"size": 0}}, "at least 1"),
        ({"time_limit": {"max_steps": 0}}, "wrapper time_limit cannot be used"),
    ],
)
def test_a_wrong_argument_is_refused(entry: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        counting(entry)


@pytest.mark.parametrize("name", [{"keep": {"indices": [0]}}, "frame_stack", "append_action_reward", "normalize_observation"])
def test_a_wrapper_that_needs_a_vector_says_flatten(name: Any) -> None:
    class Cards(Counting):
        observation_space = gym.spaces.Discrete(6)  # type: ignore[assignment]

    with pytest.raises(UserError, match="flatten"):
        counting(name, env=Cards)
    with pytest.raises(SpaceError, match="Discrete actions"):
        counting("append_action_reward", env="Pendulum-v1")


# Normalisation


@given(st.lists(st.lists(st.floats(-100, 100), min_size=0, max_size=4), min_size=1, max_size=6))
def test_moments_merged_by_batch_are_those_of_all_rows(batches: list[list[float]]) -> None:
    moments = RunningMoments(())
    for batch in batches:
        moments.update(np.array(batch))
    rows = [x for batch in batches for x in batch]
    assert moments.count == len(rows)
    if rows:
        assert np.isclose(moments.mean, np.mean(rows)) and np.isclose(moments.var, np.var(rows), atol=1e-9)


def test_observations_are_normalised_by_all_that_were_seen_once_each() -> None:
    envs = counting({"keep": {"indices": [0]}}, {"normalize_observation": {"clip": 1.3}})
    # The first observation alone: mean 0, variance 0, so 0.
    assert envs.reset().tolist() == [[0]]
    # 0 and 1: mean 0.5, standard deviation 0.5, so 1 becomes 1.
    assert np.allclose(envs.step(act(0)).obs, [[1.0]])
    # 0, 1, 2: mean 1, standard deviation sqrt(2/3), so 2 becomes 1.2247.
    assert np.allclose(envs.step(act(0)).obs, [[1.5**0.5]])
    # 0, 1, 2, 3: mean 1.5, standard deviation sqrt(1.25), so 3 becomes 1.3416, clipped.
    assert np.allclose(envs.step(act(0)).obs, [[1.3]])
    end = envs.step(act(0))
    # The final 4 and the next first 0 both count: 0, 1, 2, 3, 4, 0 has mean 5/3.
    assert envs.observation_normalizer.moments.count == 6
    assert np.allclose(envs.observation_normalizer.moments.mean, [5 / 3])
    deviation = np.std([0, 1, 2, 3, 4, 0])
    assert np.allclose(end.obs, [[-5 / 3 / deviation]]) and np.allclose(end.final_obs, [[1.3]])


def test_rewards_are_normalised_and_episodes_keep_the_raw_ones() -> None:
    envs = counting({"normalize_reward": {"gamma": 0.5}})
    envs.reset()
    # r = 0.5, 1, 1.5, 2. R = 0.5, then 0.5*0.5+1 = 1.25, then 2.125, then 3.0625.
    discounted = [0.5, 1.25, 2.125, 3.0625]
    first = envs.step(act(0))
    assert first.rewards[0] == 10  # one return has no variance: the quotient is clipped
    for n, reward in enumerate([1.0, 1.5, 2.0], start=2):
        step = envs.step(act(0))
        assert np.isclose(step.rewards[0], min(10, reward / np.std(discounted[:n])))
    assert step.episodes[0].episode_return == 5.0
    # The next episode starts from R = 0: its first return is 0.5 again.
    envs.step(act(0))
    assert np.isclose(envs.reward_normalizer.moments.mean, np.mean([*discounted, 0.5]))


def test_statistics_are_frozen_in_evaluation_and_travel_by_themselves() -> None:
    train = counting("normalize_observation", "normalize_reward", num_envs=2)
    train.reset()
    for _ in range(6):
        train.step(act(0, 2))
    evaluation = counting("normalize_observation", "normalize_reward", num_envs=3, seed_stream="evaluation", update_statistics=False)
    evaluation.load_statistics(train.statistics())
    before = evaluation.observation_normalizer.state_dict()
    obs = evaluation.reset()
    assert np.array_equal(obs[0], train.observation_normalizer.normalize(np.zeros(3)))
    for _ in range(6):
        evaluation.step(act(0, 3))
    after = evaluation.observation_normalizer.state_dict()
    assert all(np.array_equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_normalised_environments_resume_bit_for_bit(vectorization: str) -> None:
    wrappers = ["append_action_reward", {"frame_stack": {"size": 2}}, "normalize_observation", "normalize_reward"]
    actions = np.random.default_rng(0).integers(2, size=(60, 3))
    envs = counting(*wrappers, num_envs=3, env="CartPole-v1", vectorization=vectorization)
    envs.reset()
    for action in actions[:30]:
        envs.step(action)
    resumed = counting(*wrappers, num_envs=3, env="CartPole-v1", vectorization=vectorization)
    obs, restored = resumed.load_state_dict(envs.state_dict())
    assert restored.all() and np.array_equal(obs, envs.obs)
    for action in actions[30:]:
        left, right = envs.step(action), resumed.step(action)
        assert np.array_equal(left.obs, right.obs) and np.array_equal(left.rewards, right.rewards)


def test_a_reset_step_leaves_the_statistics_alone() -> None:
    valid, first = np.array([True, False]), np.array([False, True])
    observations = ObservationNormalizer((1,))
    observations.step(np.array([[1.0], [3.0]]), np.array([[1.0], [3.0]]), first, valid)
    assert observations.moments.count == 2 and observations.moments.mean == 2  # the first observation once, not twice
    rewards = RewardNormalizer(2, gamma=1.0)
    rewards.step(np.array([1.0, 1.0]), np.array([False, True]), np.array([True, True]))
    assert rewards.step(np.array([1.0, 0.0]), np.array([False, False]), valid)[1] == 0
    assert rewards.moments.count == 3 and np.isclose(rewards.moments.mean, 4 / 3)  # returns 1, 1, 2


def test_flatten_joins_the_parts_of_a_dict() -> None:
    class Parts(Counting):
        observation_space = gym.spaces.Dict(  # type: ignore[assignment]
            place=gym.spaces.Discrete(3),
            speed=gym.spaces.Box(-10, 10, (2,), np.float64),
            switches=gym.spaces.MultiDiscrete([2, 2]),
        )

        def _observe(self) -> Any:
            return {"place": self.time % 3, "speed": np.array([0.5, -self.time]), "switches": np.array([self.time % 2, 0])}

    envs = counting("flatten", env=Parts)
    envs.reset()
    obs = envs.step(act(0)).obs
    # place 1 of 3; speed as it is; the first switch at 1, the second at 0. Keys in their sorted order, float32.
    assert obs.dtype == np.float32 and obs.tolist() == [[0, 1, 0, 0.5, -1, 0, 1, 1, 0]]
    kept = counting("flatten", {"keep": {"indices": [3, 4]}}, env=Parts)
    kept.reset()
    assert kept.step(act(0)).obs.tolist() == [[0.5, -1]]


class WithCamera(gym.Env[Any, Any]):
    """A camera that shows the number of the step, and a speed."""

    observation_space = spaces.Dict({"camera": spaces.Box(0, 255, (20, 20), np.uint8), "speed": spaces.Box(-1, 1, (2,), np.float32)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._obs(), 0.0, False, False, {}

    def _obs(self) -> dict[str, Any]:
        return {"camera": np.full((20, 20), self.time, np.uint8), "speed": np.zeros(2, np.float32)}


def test_select_takes_one_entry_of_a_dict() -> None:
    envs = make_envs(WithCamera, num_envs=1, seed=0, env_kwargs={"wrappers": [{"select": {"key": "camera"}}]})
    assert envs.reset().shape == (1, 1, 20, 20)
    assert envs.step(np.zeros(1, np.int64)).obs.mean() == 1
    envs.close()
    with pytest.raises(UserError, match="cannot take 'cam' of the observation space: it has 'camera', 'speed'"):
        make_envs(WithCamera, num_envs=1, seed=0, env_kwargs={"wrappers": [{"select": {"key": "cam"}}]})
    with pytest.raises(UserError, match="cannot take 'cam' of the observation space: it is no Dict"):
        make_envs("CartPole-v1", num_envs=1, seed=0, env_kwargs={"wrappers": [{"select": {"key": "cam"}}]})
