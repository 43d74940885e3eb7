"""benchmarks/trials: what was tried for a config, on seeds that judge no config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.keep_trials import RESULTS, added, same, text
from rl_training.ledger.records import Record
from rl_training.ledger.suites import load_suite, plan_groups

SUITES = sorted((RESULTS.parent.parent / "trials").glob("*.yaml"))
FIRST_SEED = 101
"""Suites judge by the seeds below."""


def a_record(seed: int, best: float, **settings: Any) -> Record:
    config = {"algo": "dqn", "env_id": "CartPole-v1", "total_timesteps": 10, "num_envs": 1, "env_kwargs": {}, "algo_kwargs": settings}
    scores = {"best": {"eval_return_mean": best}, "final": {"eval_return_mean": best - 1}}
    about = {"name": f"dqn__cartpole__x__seed{seed}", "suite": "cartpole", "seed": seed, "git": {"commit": "c" * 40}}
    return Record.from_json({**about, "config": config, **scores}, source="a test")


def test_trials_are_added_and_a_changed_setting_begins_anew() -> None:
    kept = added({}, (a_record(101, 3.456, n_step=1), a_record(102, 5.0, n_step=1)))
    runs = kept["cartpole"]["dqn__cartpole__x"]["runs"]
    assert runs == {
        "101": {"best": 3.46, "final": 2.46, "commit": "c" * 12},
        "102": {"best": 5.0, "final": 4.0, "commit": "c" * 12},
    }
    kept = added(kept, (a_record(103, 6.0, n_step=1),))
    assert list(kept["cartpole"]["dqn__cartpole__x"]["runs"]) == ["101", "102", "103"]
    kept = added(kept, (a_record(104, 7.0, n_step=3),))
    assert kept["cartpole"]["dqn__cartpole__x"]["config"]["algo_kwargs"] == {"n_step": 3}
    assert list(kept["cartpole"]["dqn__cartpole__x"]["runs"]) == ["104"]
    assert json.loads(text(kept)) == kept


def test_a_setting_that_came_later_changes_no_trial() -> None:
    assert same({"algo_kwargs": {"n_step": 1, "gamma": 0.9}}, {"algo_kwargs": {"n_step": 1, "new": True}})
    assert not same({"algo_kwargs": {"n_step": 1}}, {"algo_kwargs": {"n_step": 3, "new": True}})


@pytest.mark.skipif(not RESULTS.is_file(), reason="a source distribution has no results")
@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_what_was_tried_can_be_repeated(path: Path) -> None:
    """The suites still load, with the seeds and settings of the record, though shipped configs have changed since."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["trials"][path.stem]
    groups = plan_groups(load_suite(path))
    assert {group.name for group in groups} == set(kept)
    for group in groups:
        trial = kept[group.name]
        assert [str(plan.config.seed) for plan in group.plans] == list(trial["runs"])
        for plan in group.plans:
            assert plan.config.seed >= FIRST_SEED
            assert same(json.loads(json.dumps(plan.config.to_dict())), trial["config"])
