"""The acting side's own parts: what exploration draws, and how transitions reach the replay."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rl_training.data import NStepAccumulator, PrioritizedReplayBuffer, ReplayBuffer
from rl_training.runtime.actor import ReplayFeed
from rl_training.runtime.behaviour import EpsilonGreedy
from rl_training.types import EnvStep, Step

NUMBERS = {1: np.array([[1.0, 3.0, 2.0]]), 3: np.array([[1.0, 3.0, 2.0], [4.0, 3.0, 2.0], [1.0, 1.0, 2.0]])}


def greedy(num_envs: int, ahead: int, epsilon: Any = lambda step: 0.5) -> EpsilonGreedy:
    return EpsilonGreedy(epsilon, num_actions=3, learning_starts=2, seed=7, ahead=ahead)


def act(behaviour: EpsilonGreedy, step: int, num_envs: int) -> list[int]:
    actions = behaviour.begin(step, num_envs)
    return (behaviour.choose(NUMBERS[num_envs]) if actions is None else actions).tolist()


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("ahead", [1, 4, 256])
def test_exploration_is_two_draws_a_step_however_far_ahead(num_envs: int, ahead: int) -> None:
    # u ~ U(0,1), then a ~ U{0..2}, for each environment: a where u < ε (everywhere before step 2), else the best action
    rng, behaviour = np.random.default_rng(7), greedy(num_envs, ahead)
    for step in range(30):
        explore = rng.random(num_envs) < (1.0 if step < 2 else 0.5)
        uniform = rng.integers(3, size=num_envs)
        assert act(behaviour, step, num_envs) == np.where(explore, uniform, NUMBERS[num_envs].argmax(-1)).tolist()


def test_one_environment_may_have_a_rate_of_its_own() -> None:
    one, ladder = greedy(1, 4), greedy(1, 4, np.array([0.5]))
    assert [act(one, step, 1) for step in range(20)] == [act(ladder, step, 1) for step in range(20)]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("at", [0, 3, 4, 9])  # before the first draw, inside what was drawn ahead, and at its end
def test_exploration_goes_on_where_it_was_saved(num_envs: int, at: int) -> None:
    whole, begun, resumed = (greedy(num_envs, 4) for _ in range(3))
    expected = [act(whole, step, num_envs) for step in range(20)]
    assert [act(begun, step, num_envs) for step in range(at)] == expected[:at]
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert resumed.state_dict() == begun.state_dict()  # also before it has drawn again
    assert [act(resumed, step, num_envs) for step in range(at, 20)] == expected[at:]
    assert resumed.state_dict() == whole.state_dict()


def test_a_state_from_before_anything_was_drawn_ahead_is_taken() -> None:
    old, new = greedy(3, 1), greedy(3, 4)
    for step in range(5):
        act(old, step, 3)
    new.load_state_dict({"rng": old.state_dict()["rng"]})
    assert [act(old, step, 3) for step in range(5, 15)] == [act(new, step, 3) for step in range(5, 15)]


# Transitions on their way into the replay.


def steps(count: int, num_envs: int = 2) -> list[tuple[np.ndarray, np.ndarray, EnvStep]]:
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        obs, final = rng.normal(size=(2, num_envs, 3)).astype(np.float32)
        ended = np.array([i % 5 == 4, False])
        flags = {"terminated": ended, "truncated": np.zeros(num_envs, bool), "is_first": ended, "valid": np.ones(num_envs, bool)}
        made.append((obs, rng.integers(2, size=num_envs), EnvStep(obs, final, np.full(num_envs, i, np.float32), episodes=(), **flags)))
    return made


@pytest.mark.parametrize("capacity", [500, 150, 50])  # all fit; they go around the ring; more than it holds come at once
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("buffer", [ReplayBuffer, PrioritizedReplayBuffer])
def test_transitions_kept_back_are_those_added_one_step_at_a_time(buffer: Any, n_step: int, capacity: int) -> None:
    states = []
    for every in (1, 4, 1000):
        replay = buffer(capacity, (3,))
        feed = ReplayFeed(NStepAccumulator(n_step, 0.9, 2), replay)
        for i, (obs, actions, step) in enumerate(steps(150)):
            feed.push(Step(obs, actions, step.rewards, step.final_obs, step.terminated, step.truncated, step.is_first, step.valid))
            if i % every == 0:
                feed.flush()
        assert len(replay) >= min(capacity, 2 * (150 - ReplayFeed.MOST)), "nobody keeps back more than so many steps"
        feed.flush()
        feed.flush()  # nothing is added twice
        states.append(replay.state_dict()["storage"])
    for other in states[1:]:
        assert (other["size"], other["position"]) == (states[0]["size"], states[0]["position"])
        np.testing.assert_array_equal(other["rows"], states[0]["rows"])
