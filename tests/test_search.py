"""benchmarks/search.py: what chooses settings must be the algorithms and the environments it chooses them for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from benchmarks.population import DEFAULTS, TASKS, Population
from benchmarks.search import SEARCHES, Search, draw, effects, medians, run
from rl_training.algorithms import DQN, QRDQN
from rl_training.models import MLPQNetwork, MLPQRQNetwork

REPOSITORY = Path(__file__).parent.parent
SMALL: dict[str, Any] = {"hidden_sizes": [8, 8], "batch_size": 16, "learning_starts": 40, "buffer_capacity": 64, "max_grad_norm": 0.5}


@pytest.mark.parametrize("name", TASKS)
def test_an_environment_is_gymnasiums(name: str) -> None:
    task, env = TASKS[name], gym.make(TASKS[name].env_id)
    assert env.spec is not None and env.spec.max_episode_steps == task.limit
    env.action_space.seed(1)
    for seed in range(3):
        env.reset(seed=seed)
        over = False
        while not over:
            state = torch.tensor(np.asarray(env.unwrapped.state, dtype=np.float32))  # type: ignore[attr-defined]
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            after, own_reward, own_terminated = task.step(state, torch.tensor(action))
            torch.testing.assert_close(task.observe(after), torch.as_tensor(obs), atol=2e-6, rtol=1e-6)
            assert (own_reward.item(), own_terminated.item()) == (reward, terminated)
            over = terminated or truncated


def test_first_states_lie_where_gymnasiums_do() -> None:
    for task in TASKS.values():
        states = task.fresh(2_000, device="cpu")
        env = gym.make(task.env_id)
        theirs = []
        for seed in range(200):
            env.reset(seed=seed)
            theirs.append(np.asarray(env.unwrapped.state))  # type: ignore[attr-defined]
        for own, other in ((states.amin(0), np.min(theirs, axis=0)), (states.amax(0), np.max(theirs, axis=0))):
            np.testing.assert_allclose(own.numpy(), other, atol=0.01)


def population_of(*runs: dict[str, Any], steps: int = 60) -> Population:
    population = Population(TASKS["cartpole"], [SMALL | settings for settings in runs], total_timesteps=200, seed=3, device="cpu")
    for _ in range(steps):
        population.act()
    return population


@pytest.mark.numeric
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("head", ["scalar", "quantile"])
def test_an_update_is_the_packages(head: str) -> None:
    """Two runs with other rates, discounts, windows and targets; each must go the way of the learner with its settings."""
    shape = {"head": head, "num_quantiles": 1 if head == "scalar" else 5}
    settings = [
        {"learning_rate": 3e-3, "learning_rate_end": 1e-3, "gamma": 0.9, "n_step": 1, "target_update_interval": 2, "tau": 0.3},
        {"learning_rate": 1e-2, "learning_rate_end": 0.0, "gamma": 0.8, "n_step": 3, "target_update_interval": 3, "double_q": True},
    ]
    population = population_of(*(shape | each for each in settings))
    population.flat_target += torch.randn(population.flat.shape, generator=torch.Generator().manual_seed(4))  # other actions are the best
    learners: list[Any] = []
    for number, each in enumerate(settings):

        def rate(step: int, each: dict[str, Any] = each) -> float:
            return float(each["learning_rate_end"] + (each["learning_rate"] - each["learning_rate_end"]) * (1 - step / 200))

        options: dict[str, Any] = {"double_q": each.get("double_q", False), "tau": each.get("tau", 1.0), "max_grad_norm": 0.5}
        arguments = {"learning_rate": rate, "gamma": each["gamma"], "target_update_interval": each["target_update_interval"], **options}
        learner: Any = (
            DQN(MLPQNetwork(4, 2, (8, 8)), **arguments) if head == "scalar" else QRDQN(MLPQRQNetwork(4, 2, 5, (8, 8)), **arguments)
        )
        for network, weights in ((learner.q_network, population.weights), (learner.target_network, population.target)):
            for parameter, weight in zip(network.parameters(), weights, strict=True):
                parameter.data.copy_(weight[number].detach().T.reshape(parameter.shape))
        learner.last_step = 60
        learners.append(learner)
    for _ in range(4):
        for _ in range(2):  # train_frequency
            population.act()
        batch = population.sample()
        population.update(batch)
        population.follow()
        for number, learner in enumerate(learners):
            fields = {name: value[number] for name, value in batch._asdict().items()}
            learner.update({**fields, "dones": torch.zeros(16)}, global_step=int(population.steps))
    for number, learner in enumerate(learners):
        for network, weights in ((learner.q_network, population.weights), (learner.target_network, population.target)):
            for parameter, weight in zip(network.parameters(), weights, strict=True):
                # Some 1e-9: the quantiles' levels are float32, so gradients agree to 6e-8 of their size, and Adam's step of 1e-2 with them.
                torch.testing.assert_close(parameter.detach(), weight[number].detach().T.reshape(parameter.shape), atol=1e-8, rtol=0)


def test_a_window_of_steps_ends_with_its_episode() -> None:
    """By hand: rewards 1, 2, 3, 4, … γ = ½, n = 3; the third step ends its episode by a termination, the sixth by a time limit."""
    population = population_of({"n_step": 3, "gamma": 0.5, "batch_size": 400}, steps=0)
    memory = population.memory
    memory["rewards"][0, :8] = torch.arange(1.0, 9.0)
    memory["obs"][0, :8] = torch.arange(8.0).unsqueeze(-1)
    memory["next_obs"][0, :8] = torch.arange(1.0, 9.0).unsqueeze(-1)
    memory["terminated"][0, 2] = memory["ended"][0, 2] = memory["ended"][0, 5] = True
    population.place.fill_(8)
    population.steps.fill_(8)
    batch = population.sample()
    expected = {  # first step → return, discount, where it bootstraps
        0: (1 + 2 / 2 + 3 / 4, 0.0, 3),
        1: (2 + 3 / 2, 0.0, 3),
        2: (3.0, 0.0, 3),
        3: (4 + 5 / 2 + 6 / 4, 0.125, 6),
        4: (5 + 6 / 2, 0.25, 6),
        5: (6.0, 0.5, 6),  # 6 and 7 are not yet followed by enough
    }
    seen = set()
    for obs, reward, discount, after in zip(batch.obs[0, :, 0], batch.rewards[0], batch.discounts[0], batch.next_obs[0, :, 0], strict=True):
        assert (reward.item(), discount.item(), after.item()) == expected[int(obs)]
        seen.add(int(obs))
    assert seen == set(expected)


def test_runs_that_go_together_have_one_shape() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        population_of({"batch_size": 8}, {"batch_size": 16})


def test_choices_that_belong_together_stay_together() -> None:
    pairs = [{"learning_rate": 1.0, "tau": 0.1}, {"learning_rate": 2.0, "tau": 0.2}]
    search = Search("cartpole", ({"batch_size": 8}, {"batch_size": 16}), {"+pair": pairs, "gamma": [0.9]}, known=({"gamma": 0.5},))
    drawn = draw(search, 20, random.Random(1))
    assert len(drawn) == 41 and drawn[0] == {"gamma": 0.5}
    assert {(each["learning_rate"], each["tau"]) for each in drawn[1:]} == {(1.0, 0.1), (2.0, 0.2)}


def test_the_best_choices_get_more_runs() -> None:
    shape = {**SMALL, "learning_starts": 5}
    implicit = shape | {"head": "implicit", "num_quantiles": 4, "num_acting_quantiles": 2}
    search = Search("mountaincar", (shape, implicit), {"gamma": [0.1 * k for k in range(10)]})
    results = run(search, seconds=1e9, width=64, samples=8, total_timesteps=12, seed=1, device="cpu")
    counts = sorted(len(curves) for curves in results.curves.values())
    # 16 draws of 20 choices, some twice; two runs a draw, six more for the best twelve draws, 24 more for the best four of those
    assert sum(counts) == 16 * 2 + 12 * 6 + 4 * 24
    assert counts[-1] >= 32 and all(len(curve) == 2 and curve[-1] == -200 for curves in results.curves.values() for curve in curves)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_names_settings_of_the_copy(name: str) -> None:
    search = SEARCHES[name]
    for settings in draw(search, 3, random.Random(1)):
        assert settings.keys() <= DEFAULTS.keys()
        Population(TASKS[search.task], [settings | {"buffer_capacity": 200}], total_timesteps=100, seed=1, device="cpu").act()


def test_the_page_says_what_the_record_does() -> None:
    searches = json.loads((REPOSITORY / "benchmarks/results/search.json").read_text(encoding="utf-8"))["searches"]
    assert "\n".join(effects(searches)) in (REPOSITORY / "docs/measuring.md").read_text(encoding="utf-8")


def test_medians_count_the_first_two_runs_of_each_choice() -> None:
    rows = [
        {"settings": {"n_step": 3}, "finals": [1.0, 3.0, 100.0, 100.0]},  # the best: its later runs would count it twice
        {"settings": {"n_step": 3}, "finals": [5.0, 7.0]},
        {"settings": {}, "finals": [2.0, 2.0]},  # a single choice says nothing
    ]
    assert medians(rows, "n_step") == {3: 4.0}
