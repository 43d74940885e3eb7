"""Action masks on the acting side: where they come from, what they belong to, and that nothing forbidden is ever chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from command_line import Cli
from masked_tasks import Guarded, Told, guarded, mask_of
from rl_training import DQN, PPO
from rl_training.envs.episodes import ReplayableEpisodes
from rl_training.envs.factory import make_envs
from rl_training.envs.serial import SerialVectorEnv
from rl_training.envs.vector import VectorEnvs
from rl_training.envs.workers import WorkerVectorEnv
from rl_training.errors import RunError, UserError
from rl_training.runtime.behaviour import EpsilonGreedy
from rl_training.types import Array

SEED = 7
MODES = ["serial", "async", *AutoresetMode]


def replayable(make: Callable[[int], gym.Env[Any, Any]], index: int) -> gym.Env[Any, Any]:
    return ReplayableEpisodes(make(index), seed=SEED, stream="train", env_index=index)


def vectorized(mode: str | AutoresetMode, make: Callable[[int], gym.Env[Any, Any]], num_envs: int = 3) -> VectorEnvs:
    fns = [partial(replayable, make, i) for i in range(num_envs)]
    vector_env: VectorEnv[Any, Any, Any]
    if mode == "serial":
        vector_env = SerialVectorEnv(fns)
    elif mode == "async":
        vector_env = WorkerVectorEnv(fns)
    else:
        assert isinstance(mode, AutoresetMode)
        vector_env = SyncVectorEnv(fns, copy=False, autoreset_mode=mode)
    return VectorEnvs(vector_env, replayable=True)


class Native(SyncVectorEnv):
    """A vector environment without our wrapper; with `method` it tells its masks by one of its own."""

    def __init__(self, mode: AutoresetMode, *, method: bool, num_envs: int = 3) -> None:
        super().__init__([partial(Told, i, method) for i in range(num_envs)], autoreset_mode=mode)
        if method:
            self.action_masks = lambda: np.stack([env.unwrapped.action_masks() for env in self.envs])


def first_allowed(masks: Array | None) -> Array:
    assert masks is not None
    return masks.argmax(-1)


def require_masks(envs: VectorEnvs, count: int) -> int:
    """Steps, and compares every mask with what its observation allows. Returns how many truncations there were."""
    truncations = 0
    envs.reset()
    assert np.array_equal(envs.action_masks, mask_of(envs.obs))
    for _ in range(count):
        step = envs.step(first_allowed(envs.action_masks))
        over = step.terminated[:, None]  # everything counts as allowed there
        assert step.next_action_masks.dtype == np.bool_
        assert np.array_equal(step.next_action_masks, mask_of(step.final_obs) | over)
        waiting = over & ~step.is_first[:, None]  # NEXT_STEP: the termination is still there to look at
        assert np.array_equal(step.action_masks, mask_of(step.obs) | waiting) and step.action_masks is envs.action_masks
        truncations += int(step.truncated.sum())
    envs.close()
    return truncations


@pytest.mark.parametrize("method", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_masks_belong_to_their_observations_in_every_mode(mode: str | AutoresetMode, method: bool) -> None:
    assert require_masks(vectorized(mode, partial(Told, method=method)), 30) > 5


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_native_vector_environments_masks(mode: AutoresetMode) -> None:
    assert require_masks(VectorEnvs(Native(mode, method=False), replayable=False), 30) > 5
    if mode is not AutoresetMode.SAME_STEP:
        assert require_masks(VectorEnvs(Native(mode, method=True), replayable=False), 30) > 5
        return
    # There the method speaks of the episode that has begun: what the final observation of a time limit allows is nowhere.
    envs = VectorEnvs(Native(mode, method=True), replayable=False)
    envs.reset()
    with pytest.raises(RunError, match=r"environment 1 gave no action mask.* at its step 2 \(step 2 of its episode 0\)"):
        for _ in range(2):
            envs.step(first_allowed(envs.action_masks))


@pytest.mark.parametrize("mode", MODES)
def test_masks_handed_out_are_never_written_again(mode: str | AutoresetMode) -> None:
    envs = vectorized(mode, Told)
    envs.reset()
    held = [(envs.action_masks, np.array(envs.action_masks))]
    for _ in range(20):
        step = envs.step(first_allowed(envs.action_masks))
        held += [(masks, np.array(masks)) for masks in (step.action_masks, step.next_action_masks)]
    envs.close()
    assert all(np.array_equal(masks, copy) for masks, copy in held)


@pytest.mark.parametrize("mode", ["serial", *AutoresetMode])
def test_masks_come_back_with_the_state(mode: str | AutoresetMode) -> None:
    envs = vectorized(mode, lambda index: Guarded(), 3)
    envs.reset()
    for _ in range(12):
        envs.step(first_allowed(envs.action_masks))
        resumed = vectorized(mode, lambda index: Guarded(), 3)
        resumed.begin()
        assert resumed.load_state_dict(envs.state_dict()).restored.all()
        assert np.array_equal(resumed.action_masks, envs.action_masks)


def test_environments_without_masks_have_none() -> None:
    envs = make_envs("CartPole-v1", num_envs=2, seed=0)
    envs.reset()
    step = envs.step(np.zeros(2, np.int64))
    assert envs.action_masks is step.action_masks is step.next_action_masks is None


def test_beginning_resets_once() -> None:
    twice, once = (make_envs("CartPole-v1", num_envs=2, seed=0) for _ in range(2))
    assert np.array_equal(twice.begin(), once.reset()) and twice.begin() is twice.obs
    assert np.array_equal(twice.obs, once.obs)


def test_a_multi_discrete_mask_may_be_a_tuple() -> None:
    class Pair(Guarded):
        action_space = spaces.MultiDiscrete([2, 3])

        def action_masks(self) -> Any:
            return np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)

    envs = vectorized("serial", lambda index: Pair(), 2)
    envs.reset()
    assert np.array_equal(envs.action_masks, [[True, False, False, True, True]] * 2)


def test_masks_can_be_ignored() -> None:
    for make, wrappers in ((guarded, []), ("Taxi-v4", ["flatten"])):
        envs = make_envs(make, num_envs=1, seed=0, env_kwargs={"wrappers": [*wrappers, "ignore_action_masks"]})
        envs.reset()
        assert envs.action_masks is None


# What is wrong is told with its environment and step.


class Wrong(Guarded):
    """Gives `masks` one after the other, with the reset's first."""

    def __init__(self, *masks: Any, action_space: gym.Space[Any] | None = None) -> None:
        self._masks = list(masks)
        self.action_space = action_space or self.action_space
        self.action_masks = None  # type: ignore[method-assign, assignment]  # the info's are what is looked at

    def _info(self) -> dict[str, Any]:
        mask = self._masks.pop(0)
        return {} if mask is None else {"action_mask": mask}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**kwargs)[0], self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._look(), 0.0, False, False, self._info()


GOOD = np.ones(4, np.int8)
FAULTS = [
    (None, "environment 1 gave no action mask, and it gave one before,"),
    (np.ones(3, bool), r"environment 1 gave an action mask of shape \(3,\), not \(4,\)"),
    (np.ones((1, 4), bool), r"environment 1 gave an action mask of shape \(1, 4\), not \(4,\)"),
    (np.ones(4, np.float32), r"environment 1 gave an action mask that is not made of booleans, or of 0 and 1 \(float32\)"),
    (np.array([1, 2, 0, 0]), r"environment 1 gave an action mask that is not made of booleans, or of 0 and 1 \(int64\)"),
    (np.zeros(4, bool), "environment 1 gave an action mask that allows no action"),
    ([[1, 0], [1]], r"environment 1 gave an action mask that is no array: \[\[1, 0\], \[1\]\]"),
]


@pytest.mark.parametrize(("mode", "mask", "message"), [(MODES[k % len(MODES)], *fault) for k, fault in enumerate(FAULTS)])
def test_a_mask_that_cannot_be_used_is_told_with_environment_and_step(mode: str | AutoresetMode, mask: Any, message: str) -> None:
    envs = vectorized(mode, lambda index: Wrong(GOOD, GOOD, GOOD if index == 0 else mask, GOOD), 2)
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    with pytest.raises(RunError, match=f"{message} in step 2 of its episode 0"):
        envs.step(np.zeros(2, np.int64))
    envs.close()


@pytest.mark.parametrize(
    ("makes", "message"),
    [
        (lambda index: Wrong(np.zeros(4, bool)), "environment 0 gave an action mask that allows no action in the reset of its episode 0"),
        (lambda index: Wrong(None if index else GOOD), "environment 1 gave no action mask, and others have one"),
        (lambda index: Wrong(GOOD if index else None), "environment 0 gave no action mask, and others have one"),
        (lambda index: Wrong(GOOD, action_space=spaces.Box(-1, 1, (4,))), "an action mask, which actions of a box space cannot have"),
        (
            lambda index: Wrong(np.array([1, 0, 0, 0, 0]), action_space=spaces.MultiDiscrete([2, 3])),
            "environment 0 gave an action mask that allows no action",
        ),
    ],
)
def test_before_the_first_step_it_is_the_users(makes: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        vectorized("serial", makes, 2).reset()


# Choosing.


def test_exploration_is_uniform_over_what_is_allowed() -> None:
    masks = np.array([[True, False, True, True], [False, False, False, True]])
    behaviour = EpsilonGreedy(lambda step: 0.25, num_actions=4, learning_starts=0, seed=1)
    outputs = np.array([[5.0, 9.0, 1.0, 2.0], [9.0, 8.0, 7.0, -1.0]], np.float32)
    counts = np.zeros((2, 4), np.int64)
    for step in range(12_000):
        actions = behaviour.begin(step, 2, masks)
        counts[[0, 1], behaviour.choose(outputs, masks) if actions is None else actions] += 1
    assert counts[1].tolist() == [0, 0, 0, 12_000]
    # the best allowed one has 1 − ε + ε/3 = 5/6, each other ε/3 = 1/12; a share's standard deviation is at most √(5/36 / 12000) = 0.0034
    assert counts[0] / 12_000 == pytest.approx([5 / 6, 0, 1 / 12, 1 / 12], abs=4 * 0.0034)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_masks_change_no_draw(num_envs: int) -> None:
    masks, outputs = np.ones((num_envs, 3), bool), np.zeros((num_envs, 3), np.float32)
    with_masks, without = (EpsilonGreedy(lambda step: 0.5, num_actions=3, learning_starts=0, seed=1) for _ in range(2))
    for step in range(50):
        with_masks.begin(step, num_envs, masks), with_masks.choose(outputs, masks)
        without.begin(step, num_envs), without.choose(outputs)
    assert with_masks.state_dict() == without.state_dict()


def test_every_rate_of_a_ladder_explores_within_the_masks() -> None:
    masks = np.random.default_rng(0).random((8, 5)) < 0.4
    masks[:, 2] = True
    behaviour = EpsilonGreedy(np.array([0.0, 1e-3, 0.1, 0.4, 0.5, 0.9, 1.0, 1.0]), num_actions=5, learning_starts=100, seed=1)
    for step in range(400):
        actions = behaviour.begin(step, 8, masks)
        actions = behaviour.choose(np.zeros((8, 5), np.float32), masks) if actions is None else actions
        assert masks[np.arange(8), actions].all()


SMALL: dict[str, Any] = {"total_timesteps": 60, "device": "cpu", "num_envs": 2, "eval_episodes": 2, "seed": 1}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("masked")
    value = DQN(guarded, output_dir=folder, learning_starts=20, buffer_capacity=100, batch_size=8, hidden_sizes=[8], **SMALL)
    policy = PPO(guarded, output_dir=folder, num_steps=10, minibatch_size=8, hidden_sizes=[8], **SMALL)
    for agent in (value, policy):
        agent.learn()
    return {"dqn": value, "ppo": policy}


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_predict_chooses_among_what_is_allowed(agents: dict[str, Any], algo: str, deterministic: bool) -> None:
    agent, obs = agents[algo], np.eye(6, dtype=np.float32)[:3]
    for k in range(4):
        only = np.arange(4) == k
        assert agent.predict(obs[0], deterministic=deterministic, action_masks=only)[0] == k
        assert agent.predict(obs, deterministic=deterministic, action_masks=[only] * 3)[0].tolist() == [k] * 3
    assert agent.predict(obs, action_masks=np.ones((3, 4)) > 0)[0].tolist() == agent.predict(obs)[0].tolist()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([1, 0, 1], r"an observation has an action mask of shape \(3,\), not \(4,\)"),
        ([0, 0, 0, 0], "an observation has an action mask that allows no action"),
        ([0.5, 0, 0, 1], "an observation has an action mask that is not made of booleans, or of 0 and 1"),
        ("all", "an observation has an action mask of shape"),
    ],
)
def test_predict_refuses_other_masks(agents: dict[str, Any], mask: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        agents["dqn"].predict(np.zeros(6, np.float32), action_masks=mask)


def test_the_command_line_takes_a_mask_with_an_observation(agents: dict[str, Any], cli: Cli, here: Path) -> None:
    obs = [1.0, 0, 0, 0, 0, 0]
    asked = [{"obs": obs}, {"obs": obs, "action_mask": [0, 0, 0, 1]}, {"obs": obs, "action_mask": [True, True, False, False]}]
    texts = [json.dumps(each) for each in asked]
    q = [json.loads(line) for line in cli("predict", "--checkpoint", str(agents["dqn"].checkpoint_path), *texts).out.splitlines()]
    assert q[1]["action"] == 3 and q[2]["action"] == int(np.argmax(q[0]["q_values"][:2])) and q[1]["q_values"] == q[0]["q_values"]
    p = [json.loads(line) for line in cli("predict", "--checkpoint", str(agents["ppo"].checkpoint_path), *texts).out.splitlines()]
    # what is left of the probabilities is divided by its sum
    left = np.array(p[0]["probabilities"][:2])
    assert p[1]["probabilities"] == [0, 0, 0, 1] and p[2]["probabilities"] == pytest.approx([*left / left.sum(), 0, 0], rel=1e-6)
    refused = cli("predict", "--checkpoint", str(agents["dqn"].checkpoint_path), json.dumps({"obs": obs, "action_mask": [1]}))
    assert refused.code == 2 and "observation 1 has an action mask of shape (1,), not (4,)" in refused.err
