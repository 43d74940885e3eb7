"""How surely a judged suite passes: every config of it over other seeds than its own, and what k of n seeds then fails by bad luck.

    python -m benchmarks.calibrate smoke --jobs 16      # 20 seeds of each config; writes benchmarks/results/calibration/smoke.json

Where the task is the chain, the record also holds how far the learned Q is from Q*. tests/test_learning.py judges by the same measurement,
and checks that the thresholds it uses leave less than 1% of false failures in what is written here.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.envs.chain import optimal_q
from rl_training.experiment.files import write_json
from rl_training.experiment.settings import ValueSettings
from rl_training.ledger.judging import MAX_FALSE_FAILURES, false_failures
from rl_training.ledger.machine import machine
from rl_training.ledger.runner import run_plan
from rl_training.ledger.suites import Plan, load_suite, plan_groups
from rl_training.runtime.seeds import parse_seeds
from rl_training.runtime.workflows import load_policy

RESULTS = Path("benchmarks/results/calibration")


def measure(plan: Plan) -> dict[str, Any]:
    """One run: the returns of its two policies, and for Q-learning on the chain the largest error of Q, the right way and the wrong way."""
    with tempfile.TemporaryDirectory() as folder:
        record = run_plan(plan, Path(folder))
        measured = {"best": record["best"]["eval_return_mean"], "final": record["final"]["eval_return_mean"]}
        if plan.config.env_id == "rl_training/Chain-v0" and isinstance(plan.config.settings, ValueSettings):
            (run,) = Path(folder).iterdir()
            optimal = optimal_q(plan.config.settings.to_dict()["gamma"])
            states = np.eye(len(optimal) + 1, dtype=np.float32)[:-1]
            q_values, _ = load_policy(run / "checkpoints" / "latest").q_values(states)
            wrong, right = np.abs(np.asarray(q_values) - optimal).max(0)
            measured |= {"q_error_right": float(right), "q_error_wrong": float(wrong)}
    return measured


def _measure(plan: Plan) -> tuple[Plan, dict[str, Any]]:
    return plan, measure(plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--seeds", default="101-120", help="not the suite's own (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these configs alone; what is recorded of the others stays")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    suite = load_suite(options.suite)
    groups = [group for group in plan_groups(suite, tuple(parse_seeds(options.seeds))) if not options.only or group.name in options.only]
    measured: dict[str, dict[int, dict[str, Any]]] = {group.name: {} for group in groups}
    plans = [plan for group in groups for plan in group.plans]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for plan, result in pool.imap_unordered(_measure, plans):
            measured[plan.group][plan.config.seed] = result
            print(plan.name, result, flush=True)
    own = {group.name: group for group in plan_groups(suite)}
    for name, runs in measured.items():
        judgement = own[name].judgement
        if judgement is None:
            continue
        passed = sum(run[judgement.policy] >= judgement.threshold for run in runs.values())
        chance = false_failures(passed, len(runs), needed=judgement.needed, seeds=len(own[name].plans))
        verdict = "ok" if chance < MAX_FALSE_FAILURES else "TOO OFTEN: lower the threshold"
        scores = sorted(run[judgement.policy] for run in runs.values())
        print(
            f"{name}: {passed}/{len(runs)} reach {judgement.threshold:g} (lowest {scores[0]:.4g}, next {scores[1]:.4g}); "
            f"{judgement.needed} of {len(own[name].plans)} seeds fails in {chance:.2%} at most: {verdict}"
        )
    RESULTS.mkdir(parents=True, exist_ok=True)
    ordered = {name: {str(seed): runs[seed] for seed in sorted(runs)} for name, runs in measured.items()}
    file, here = RESULTS / f"{suite.name}.json", machine(threads=1)
    record: dict[str, Any] = {"suite": suite.name, "machine": here, "added_on": {}, "runs": {}}
    if options.only:
        record = {"added_on": {}, **json.loads(file.read_text())}
        record["added_on"] = {**record["added_on"], **dict.fromkeys(ordered, here)}
    record["runs"] |= ordered
    write_json(file, record)


if __name__ == "__main__":
    main()
