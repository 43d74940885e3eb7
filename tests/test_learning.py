"""Learning, in seconds: the suite `smoke`, each of its configs judged by k of n seeds (the next seed is tried only where it is needed)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.calibrate import RESULTS, measure
from rl_training.envs.chain import Chain, optimal_q
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.experiment.settings import RecurrentPPOSettings, RecurrentPQNSettings, RecurrentSettings
from rl_training.ledger.judging import MAX_FALSE_FAILURES, false_failures
from rl_training.ledger.suites import Group, load_suite, plan_groups

SMOKE = {group.name: group for group in plan_groups(load_suite("smoke"))}
ROOT = Path(__file__).parent.parent

# How far Q may be from Q*, which lies between 0.59 and 1: for the way to the end, and for the wrong way.
RIGHT, WRONG = 0.05, 0.08


def passes(group: Group, measured: dict[str, Any]) -> bool:
    judgement = group.judgement
    assert judgement is not None
    if measured[judgement.policy] < judgement.threshold:
        return False
    if "q_error_right" not in measured:
        return True
    settings = group.plans[0].config.settings.to_dict()
    # n-step returns are not corrected for exploration, a noisy network hardly ever goes the wrong way, and Munchausen widens the gap to it:
    # judged by the way they take
    sees_both_ways = settings["n_step"] == 1 and not settings["noisy"] and not settings["munchausen"]
    return bool(measured["q_error_right"] <= RIGHT and (measured["q_error_wrong"] <= WRONG or not sees_both_ways))


def _env_id(group: Group) -> str:
    return group.plans[0].config.env_id


@pytest.mark.parametrize("name", SMOKE)
def test_it_learns(name: str) -> None:
    group = SMOKE[name]
    assert group.judgement is not None
    needed, seen = group.judgement.needed, []
    for plan in group.plans:
        seen.append(measure(plan))
        needed -= passes(group, seen[-1])
        if needed == 0:
            return
    pytest.fail(f"{name} learned with too few of its seeds: {seen}")


def test_every_row_is_in_the_suite() -> None:
    recurrent = (RecurrentSettings, RecurrentPPOSettings, RecurrentPQNSettings)
    feed_forward = {name for name in algorithm_names() if not issubclass(get_algorithm_spec(name).settings, recurrent)}
    chain, twin = (
        {group.algorithm for group in SMOKE.values() if _env_id(group) == f"rl_training/{env}-v0"} for env in ("Chain", "MemoryChain")
    )
    assert chain == feed_forward
    assert twin == set(algorithm_names()) - feed_forward


@pytest.mark.parametrize("name", SMOKE)
def test_a_sound_program_fails_in_less_than_one_case_of_a_hundred(name: str) -> None:
    file = ROOT / RESULTS / "smoke.json"
    runs = json.loads(file.read_text())["runs"].get(name)
    assert runs, f"{name} is not calibrated: python -m benchmarks.calibrate smoke"
    group = SMOKE[name]
    assert group.judgement is not None
    assert len(runs) >= 20 and not {str(plan.config.seed) for plan in group.plans} & runs.keys()
    passed = sum(passes(group, run) for run in runs.values())
    assert false_failures(passed, len(runs), needed=group.judgement.needed, seeds=len(group.plans)) < MAX_FALSE_FAILURES


def test_the_chain_has_the_q_values_it_says() -> None:
    """Value iteration on the environment itself: Q(s, a) = r + γ·max Q(s', ·), nothing after the end."""
    gamma, length = 0.9, 5
    env = Chain(length)
    q = np.zeros((length, 2))
    for _ in range(50):
        for state in range(length - 1):
            for action in (0, 1):
                env.reset(seed=0)
                env._state = state
                obs, reward, terminated, _, _ = env.step(action)
                q[state, action] = reward + gamma * (not terminated) * q[int(obs.argmax())].max()
    np.testing.assert_allclose(q[:-1], optimal_q(gamma, length), atol=1e-12)


def test_without_memory_the_twin_is_half_solved() -> None:
    """Every greedy policy that sees the present only: 2 actions × 4 states after the first step, which may use the cue. 5/8 at most."""
    best = 0.0
    for code in range(2**4):
        policy, successes = [(code >> state) & 1 for state in range(4)], 0
        for start in range(4):
            for right in (0, 1):
                env = Chain(cue=True)
                env.reset(seed=0)
                env._state, env._right = start, right
                obs, reward, terminated, truncated, _ = env.step(right)
                assert not obs[5:].any()  # the cue is gone
                while not (terminated or truncated):
                    obs, reward, terminated, truncated, _ = env.step(policy[int(obs[:5].argmax())])
                successes += reward == 1.0
        best = max(best, successes / 8)
    assert best == 5 / 8
    seen = [env.reset(seed=seed)[0] for seed in range(20)]
    assert {tuple(obs[5:]) for obs in seen} == {(1.0, 0.0), (0.0, 1.0)}
