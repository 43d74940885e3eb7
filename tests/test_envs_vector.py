"""The adapter gives one meaning to a step in every autoreset mode, names what fails, and brings episodes back exactly."""

from __future__ import annotations

import itertools
import zlib
from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.envs.episodes import ReplayableEpisodes, episode_seed
from rl_training.envs.factory import make_envs
from rl_training.envs.normalize import RewardNormalizer
from rl_training.envs.serial import SerialVectorEnv
from rl_training.envs.vector import VectorEnvs
from rl_training.errors import CheckpointError, RunError, UserError
from rl_training.types import EnvStep

SEED = 7
MODES = ["serial", *AutoresetMode]
# How episodes end, by environment and episode: (length, "terminated" | "truncated" | "both"), repeated.
PLANS = {
    0: [(3, "terminated"), (1, "truncated"), (4, "both")],
    1: [(2, "truncated"), (5, "terminated")],
    2: [(1, "terminated"), (1, "terminated"), (6, "truncated")],
}


class Scripted(gym.Env[Any, Any]):
    """Observes (environment, episode, time, last action); one array is written again and again, as careless environments do.

    It knows its episode from the seed alone, as every seeded environment does, so that it can be played again.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, index: int) -> None:
        self._episodes = {episode_seed(SEED, "train", index, k): k for k in range(200)}
        self._index = index
        self._obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self._obs[:] = [self._index, self._episodes[seed], 0, -1]
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, episode, time, _ = self._obs
        length, how = plan(self._index, int(episode))
        self._obs[2:] = [time + 1, action]
        assert self._obs[2] <= length, "stepped past the end of an episode"
        over = self._obs[2] == length
        return self._obs, reward(self._index, episode, time + 1, action), over and how != "truncated", over and how != "terminated", {}


def plan(index: int, episode: int) -> tuple[int, str]:
    plans = PLANS[index]
    return plans[episode % len(plans)]


def reward(index: int, episode: float, time: float, action: float) -> float:
    return float(100 * index + 10 * episode + time + 0.5 * action)


def policy(obs: Any) -> Any:
    """A fixed function of what is observed, so that every mode must take the same actions in the same places."""
    return (obs[:, 1] * 3 + obs[:, 2]).astype(np.int64) % 2


def expected_stream(index: int, count: int) -> list[tuple[Any, ...]]:
    """The transitions of one environment, from the plan alone: (obs, action, reward, next obs, terminated, truncated)."""
    stream: list[tuple[Any, ...]] = []
    for episode in itertools.count():
        length, how = plan(index, episode)
        last_action = -1.0
        for time in range(length):
            action = (episode * 3 + time) % 2
            over = time + 1 == length
            # both flags at once is a termination: nothing follows a terminal state, whatever the clock says
            terminated = over and how in ("terminated", "both")
            after = (index, episode, time + 1, action)
            stream.append(
                (
                    (index, episode, time, last_action),
                    action,
                    reward(index, episode, time + 1, action),
                    after,
                    terminated,
                    over and not terminated,
                )
            )
            last_action = action
            if len(stream) == count:
                return stream
    raise AssertionError("unreachable")


def scripted(mode: str | AutoresetMode, num_envs: int, *, parallel: bool = False) -> VectorEnvs:
    fns = [lambda i=i: ReplayableEpisodes(Scripted(i), seed=SEED, stream="train", env_index=i) for i in range(num_envs)]
    vector_env: VectorEnv[Any, Any, Any]
    if isinstance(mode, AutoresetMode):
        backend = AsyncVectorEnv if parallel else SyncVectorEnv
        vector_env = backend(fns, copy=False, autoreset_mode=mode)
    else:
        vector_env = SerialVectorEnv(fns)
    return VectorEnvs(vector_env, replayable=True)


def collect(envs: VectorEnvs, count: int) -> tuple[list[list[tuple[Any, ...]]], list[list[Any]]]:
    """Per environment: the first `count` valid transitions, and the episodes that ended."""
    streams: list[list[tuple[Any, ...]]] = [[] for _ in range(envs.num_envs)]
    episodes: list[list[Any]] = [[] for _ in range(envs.num_envs)]
    obs = envs.reset()
    while min(len(stream) for stream in streams) < count:
        actions = policy(obs)
        step = envs.step(actions)
        for i in range(envs.num_envs):
            if step.valid[i]:
                flags = bool(step.terminated[i]), bool(step.truncated[i])
                streams[i].append((tuple(obs[i]), int(actions[i]), float(step.rewards[i]), tuple(step.final_obs[i]), *flags))
            else:
                assert step.is_first[i] and step.rewards[i] == 0 and not step.terminated[i] and not step.truncated[i]
            assert bool(step.is_first[i]) == (step.obs[i, 2] == 0)
        for episode in step.episodes:
            episodes[episode.env_index].append((episode.episode_return, episode.length))
        obs = step.obs
    envs.close()
    return [stream[:count] for stream in streams], episodes


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_every_autoreset_mode_gives_the_same_stream_of_transitions(mode: str | AutoresetMode, num_envs: int) -> None:
    streams, episodes = collect(scripted(mode, num_envs), 40)
    for i in range(num_envs):
        assert streams[i] == expected_stream(i, 40)
        # Episode 0 of environment 0: rewards 1, 2.5, 3 (actions 0, 1, 0), so a return of 6.5 in 3 steps.
        assert i != 0 or episodes[0][0] == (6.5, 3)
        lengths = [plan(i, k)[0] for k in range(len(episodes[i]))]
        assert [length for _, length in episodes[i]] == lengths
        rewards = [transition[2] for transition in expected_stream(i, sum(lengths))]
        ends = np.cumsum(lengths)
        assert [total for total, _ in episodes[i]] == [sum(rewards[end - n : end]) for end, n in zip(ends, lengths, strict=True)]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_worker_processes_give_the_same_stream(mode: AutoresetMode) -> None:
    streams, _ = collect(scripted(mode, 3, parallel=True), 20)
    assert streams == [expected_stream(i, 20) for i in range(3)]


@pytest.mark.parametrize("mode", MODES)
def test_arrays_handed_out_are_never_written_again(mode: str | AutoresetMode) -> None:
    envs = scripted(mode, 3)
    obs = envs.reset()
    held: list[tuple[Any, Any]] = [(obs, obs.copy())]
    for _ in range(30):
        step = envs.step(policy(envs.obs))
        arrays = (step.obs, step.final_obs, step.rewards, step.terminated, step.truncated, step.is_first, step.valid)
        held += [(array, array.copy()) for array in arrays]
    assert all(np.array_equal(array, copy) for array, copy in held)


def same_step(left: EnvStep, right: EnvStep) -> bool:
    names = ("obs", "final_obs", "rewards", "terminated", "truncated", "is_first", "valid")
    return left.episodes == right.episodes and all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names)


@pytest.mark.parametrize("mode", MODES)
def test_a_state_saved_at_any_step_is_restored_exactly(mode: str | AutoresetMode) -> None:
    envs, waited = scripted(mode, 3), False
    envs.reset()
    for _ in range(25):
        envs.step(policy(envs.obs))
        state = envs.state_dict()
        waited |= bool(state["waiting"].any())
        resumed = scripted(mode, 3)
        obs, restored = resumed.load_state_dict(state)
        assert restored.all() and np.array_equal(obs, envs.obs)
        # The original goes on from a restored copy too, so that 12 more steps can be compared at every save.
        original = scripted(mode, 3)
        original.load_state_dict(state)
        again = resumed.state_dict()
        assert all(np.array_equal(np.asarray(again[key]), np.asarray(state[key])) for key in state if key != "statistics")
        assert all(same_step(original.step(policy(original.obs)), resumed.step(policy(resumed.obs))) for _ in range(12))
    assert waited == (mode is AutoresetMode.NEXT_STEP)  # the hard case was among them


@pytest.mark.parametrize("mode", MODES)
def test_resumed_equals_uninterrupted(mode: str | AutoresetMode) -> None:
    straight = scripted(mode, 3)
    straight.reset()
    steps = [straight.step(policy(straight.obs)) for _ in range(30)]
    for cut in range(1, 20):
        first = scripted(mode, 3)
        first.reset()
        for _ in range(cut):
            first.step(policy(first.obs))
        second = scripted(mode, 3)
        second.load_state_dict(first.state_dict())
        assert all(same_step(second.step(policy(second.obs)), step) for step in steps[cut:])


@pytest.mark.parametrize("vectorization", ["auto", "sync", "async"])
@pytest.mark.parametrize("num_envs", [1, 4])
def test_cartpole_resumes_bit_for_bit(vectorization: Any, num_envs: int) -> None:
    actions = np.random.default_rng(0).integers(2, size=(90, num_envs))
    straight = make_envs("CartPole-v1", num_envs=num_envs, seed=3, vectorization=vectorization)
    straight.reset()
    for action in actions[:50]:
        straight.step(action)
    resumed = make_envs("CartPole-v1", num_envs=num_envs, seed=3, vectorization=vectorization)
    assert resumed.exact_resume and not resumed.resume_note
    assert resumed.load_state_dict(straight.state_dict()).restored.all()
    assert all(same_step(straight.step(action), resumed.step(action)) for action in actions[50:])
    straight.close()
    resumed.close()


def test_a_state_that_went_through_tensors_is_restored() -> None:
    torch = pytest.importorskip("torch")
    envs = make_envs("Pendulum-v1", num_envs=2, seed=0)  # real-valued actions, recorded as arrays
    envs.reset()
    actions = np.random.default_rng(0).uniform(-2, 2, size=(20, 2, 1)).astype(np.float32)
    reused = np.zeros((2, 1), np.float32)
    for action in actions[:10]:
        reused[:] = action  # a caller may write its next actions into the same array
        envs.step(reused)
    state = {key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for key, value in envs.state_dict().items()}
    resumed = make_envs("Pendulum-v1", num_envs=2, seed=0)
    assert resumed.load_state_dict(state).restored.all()
    assert all(same_step(envs.step(action), resumed.step(action)) for action in actions[10:])


def test_native_episodes_restart_on_resume_and_say_so() -> None:
    def make() -> VectorEnvs:
        return make_envs("CartPole-v1", num_envs=3, seed=0, vectorization="native", env_kwargs={"wrappers": ["normalize_observation"]})

    envs = make()
    envs.reset()
    first = envs.state_dict()["obs"]  # not normalised
    assert not envs.exact_resume and "restart" in envs.resume_note
    assert envs.step(np.zeros(3, np.int64)).valid.all()
    state = envs.state_dict()
    resumed, later = make(), make()
    assert not resumed.load_state_dict(state).restored.any()
    assert resumed.statistics()["observation"]["count"] == 9  # 3 first observations, 3 steps, and the 3 new ones
    later.load_state_dict(resumed.state_dict())
    starts = [first, resumed.state_dict()["obs"], later.state_dict()["obs"]]
    assert len({start.tobytes() for start in starts}) == 3  # fresh episodes, neither the run's first ones nor those of the resume before
    assert np.array_equal(resumed.state_dict()["lengths"], [0, 0, 0])
    with pytest.raises(CheckpointError, match="native"):
        make_envs("CartPole-v1", num_envs=3, seed=0).load_state_dict(state)


class Unseeded(Scripted):
    """Ignores its seed in one coordinate: what a replay cannot bring back."""

    counter = itertools.count()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        obs[3] = next(self.counter)
        return obs, info


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_is_not_deterministic_is_said_and_begins_afresh(mode: str | AutoresetMode) -> None:
    def make() -> VectorEnvs:
        classes = (Scripted, Unseeded)
        fns = [lambda i=i: ReplayableEpisodes(classes[i](i), seed=SEED, stream="train", env_index=i) for i in range(2)]
        return VectorEnvs(
            SyncVectorEnv(fns, autoreset_mode=mode) if isinstance(mode, AutoresetMode) else SerialVectorEnv(fns), replayable=True
        )

    envs = make()
    envs.reset()
    state = envs.state_dict()
    resumed = make()
    with pytest.warns(RuntimeWarning, match="environment 1: .*not deterministic"):
        obs, restored = resumed.load_state_dict(state)
    assert restored.tolist() == [True, False]
    assert obs[:, 1].tolist() == [0, 1]  # environment 0 is in its first episode still, environment 1 in a fresh one
    assert np.array_equal(resumed.obs, obs)
    assert all(resumed.step(np.zeros(2, np.int64)).valid.all() for _ in range(1))


class Luck(gym.Env[Any, Any]):
    """The same observation for ever; the reward and the end come from no seed."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward: float, length: int) -> None:
        self.reward, self.length = reward, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        assert self.time <= self.length, "stepped past the end of an episode"
        return np.zeros(1, np.float32), self.reward, self.time == self.length, False, {}


@pytest.mark.parametrize(
    ("saved", "now", "restored"),
    [
        ((0.0, 9), (0.0, 9), True),
        ((0.0, 9), (1.0, 9), False),  # another reward
        ((0.0, 9), (0.0, 2), False),  # it ends before the third step
        ((0.0, 9), (0.0, 3), False),  # it ends with the third step, but had not when it was saved
        ((0.0, 3), (0.0, 3), True),  # saved when it waited for its reset step
        ((0.0, 3), (0.0, 9), False),  # it was over then and is not now
        ((0.0, 3), (0.0, 2), False),  # it is over too early
    ],
)
def test_other_rewards_or_another_end_are_noticed_though_the_observation_agrees(saved: Any, now: Any, restored: bool) -> None:
    def make(luck: Any) -> VectorEnvs:
        fns = [lambda: ReplayableEpisodes(Luck(*luck), seed=SEED, stream="train", env_index=0)]
        return VectorEnvs(
            SyncVectorEnv(fns, autoreset_mode=AutoresetMode.NEXT_STEP), replayable=True, reward_normalizer=RewardNormalizer(1, gamma=1.0)
        )

    envs, resumed = make(saved), make(now)
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(1, np.int64))
    state = envs.state_dict()
    with nullcontext() if restored else pytest.warns(RuntimeWarning, match="not deterministic"):
        assert bool(resumed.load_state_dict(state).restored[0]) is restored
    after = resumed.state_dict()
    assert after["lengths"].tolist() == ([int(saved[1] > 3) * 3] if restored else [0])
    # 3 episodes' worth of steps never go past an end, and a reset step comes only where one was awaited
    assert bool(resumed.step(np.zeros(1, np.int64)).valid[0]) is not bool(after["waiting"][0])


def test_an_episode_lost_on_resume_takes_its_discounted_return_with_it() -> None:
    def make(reward: float) -> VectorEnvs:
        return make_envs(lambda: Luck(reward, 9), num_envs=1, seed=0, env_kwargs={"wrappers": [{"normalize_reward": {"gamma": 1.0}}]})

    envs, resumed = make(2.0), make(5.0)
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(1, np.int64))
    state = envs.state_dict()
    assert state["statistics"]["reward"]["returns"] == [6.0]
    with pytest.warns(RuntimeWarning, match="not deterministic"):
        resumed.load_state_dict(state)
    resumed.step(np.zeros(1, np.int64))
    assert resumed.statistics()["reward"]["returns"] == [5.0]


def test_another_number_of_environments_is_refused() -> None:
    envs = make_envs("CartPole-v1", num_envs=2, seed=0)
    envs.reset()
    with pytest.raises(CheckpointError, match="2 environments, this run has 3"):
        make_envs("CartPole-v1", num_envs=3, seed=0).load_state_dict(envs.state_dict())


@pytest.mark.parametrize("parts", [(0, 0, 0), (7, 3, 12_345), ((1 << 32) - 1, 1, 2), (1 << 32, 1, 2), ((1 << 63) + 5, 0, 9)])
def test_an_episodes_seed_is_numpys_seed_sequence_of_its_parts(parts: tuple[int, int, int]) -> None:
    seed, env_index, episode = parts
    sequence = np.random.SeedSequence((seed, zlib.crc32(b"train"), env_index, episode))
    assert episode_seed(seed, "train", env_index, episode) == int(sequence.generate_state(1)[0]) >> 1


def test_an_evaluation_can_repeat_its_episodes_and_never_meets_those_of_training() -> None:
    train, evaluation = (make_envs("CartPole-v1", num_envs=2, seed=0, seed_stream=stream) for stream in ("train", "evaluation"))
    first = evaluation.reset(first_episode=0)
    assert not np.array_equal(train.reset(), first)
    assert not np.array_equal(evaluation.reset(), first)
    assert np.array_equal(evaluation.reset(first_episode=0), first)
    seeds = {stream: {episode_seed(0, stream, i, k) for i in range(8) for k in range(50)} for stream in ("train", "evaluation")}
    assert not seeds["train"] & seeds["evaluation"] and len(seeds["train"]) == 400


class Broken(Scripted):
    """Environment 1 fails in step 4 of its episode 1 (its seventh step: episode 0 has two)."""

    def __init__(self, index: int, how: str) -> None:
        super().__init__(index)
        self._how = how

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._index == 1 and obs[1] == 1 and obs[2] == (5 if self._how == "final" else 4):
            if self._how == "raise":
                raise KeyError("lost\nits way")
            if self._how == "reward":
                reward = np.inf
            else:
                obs = np.array([1, 1, np.nan, 0], np.float32)
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", r"environment 1 raised KeyError: .*lost.* in step 4 of its episode 1$"),
        ("reward", r"environment 1 gave a reward that is not finite at its step 6 \(step 4 of its episode 1\): inf"),
        ("observation", r"environment 1 gave an observation that is not finite at its step 6 \(step 4 of its episode 1\)"),
        ("final", r"environment 1 gave an observation that is not finite at its step 7 \(step 5 of its episode 1\)"),
    ],
)
def test_what_fails_is_named(mode: str | AutoresetMode, how: str, message: str) -> None:
    fns = [lambda i=i: ReplayableEpisodes(Broken(i, how), seed=SEED, stream="train", env_index=i) for i in range(2)]
    backend = SyncVectorEnv(fns, autoreset_mode=mode) if isinstance(mode, AutoresetMode) else SerialVectorEnv(fns)
    envs = VectorEnvs(backend, replayable=True)
    envs.reset()
    with pytest.raises(RunError, match=message) as failure:
        for _ in range(20):
            envs.step(policy(envs.obs))
    assert "\n" not in str(failure.value)
    assert (how != "raise") or isinstance(failure.value.__cause__, KeyError)


@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")  # Gymnasium's log of the worker's traceback
def test_a_worker_that_raises_is_named() -> None:
    fns = [lambda i=i: ReplayableEpisodes(Broken(i, "raise"), seed=SEED, stream="train", env_index=i) for i in range(2)]
    envs = VectorEnvs(AsyncVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP), replayable=True)
    envs.reset()
    with pytest.raises(RunError, match="environment 1 raised KeyError"):
        for _ in range(20):
            envs.step(policy(envs.obs))
    envs.close()


def test_a_backend_that_raises_or_hides_its_final_observation_is_named() -> None:
    class Backend(SerialVectorEnv):
        def step(self, actions: Any) -> Any:
            obs, rewards, terminated, truncated, _ = super().step(actions)
            if self._obs[0, 1] == 2:
                raise OSError("gone")
            return obs, rewards, terminated, truncated, {}

    fns = [lambda: ReplayableEpisodes(Scripted(0), seed=SEED, stream="train", env_index=0)]
    envs = VectorEnvs(Backend(fns), replayable=True)
    envs.reset()
    with pytest.raises(RunError, match="final_obs"):
        for _ in range(3):
            envs.step(policy(envs.obs))
    envs.reset(first_episode=2)
    with pytest.raises(RunError, match=r"raised OSError: gone \(.*test_envs_vector\.py, line \d+\) at vector step") as failure:
        envs.step(policy(envs.obs))
    assert isinstance(failure.value.__cause__, OSError)


def test_a_vector_environment_without_an_autoreset_mode_is_refused() -> None:
    class Silent(SerialVectorEnv):
        def __init__(self) -> None:
            super().__init__([lambda: Scripted(0)])
            self.metadata = {}

    with pytest.raises(UserError, match="autoreset mode"):
        VectorEnvs(Silent(), replayable=False)


class Typed(gym.Env[Any, Any]):
    action_space = gym.spaces.Discrete(2)

    def __init__(self, dtype: Any) -> None:
        self.observation_space = gym.spaces.Box(0, 200, (2,), dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.full(2, 200, self.observation_space.dtype), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full(2, 100, self.observation_space.dtype), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("dtype", "out"), [(np.float64, np.float32), (np.int64, np.float32), (np.float32, np.float32), (np.uint8, np.uint8)]
)
def test_observations_come_out_float32_or_stay_uint8(dtype: Any, out: Any) -> None:
    envs = make_envs(lambda: Typed(dtype), num_envs=2, seed=0)
    assert envs.single_observation_space.dtype == out
    assert envs.reset().dtype == out and envs.step(np.zeros(2, np.int64)).final_obs.dtype == out
