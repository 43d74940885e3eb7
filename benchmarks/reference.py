"""Stable-Baselines3's DQN and sb3-contrib's QR-DQN on a suite's tasks, at its seeds and budgets, recorded as the ledger records ours.

    .peers/bin/python -m benchmarks.reference classic        # `make peers` installs them; a run whose record exists is not repeated

Their settings are those the RL Baselines3 Zoo publishes for each environment (hyperparams/dqn.yml and qrdqn.yml, tuned by its authors;
LunarLander's for v2), but for the number of quantiles on LunarLander. A run evaluates greedily as often and over as many episodes as ours
does and keeps the best network, as ours does.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.common import machine
from rl_training.errors import UserError
from rl_training.ledger import RESULTS
from rl_training.ledger.records import write_record
from rl_training.ledger.runner import FRESH
from rl_training.ledger.suites import load_suite, plan_groups
from rl_training.runtime.seeds import parse_seeds

_CARTPOLE = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}
_MOUNTAIN_CAR = {
    "learning_rate": 4e-3,
    "batch_size": 128,
    "buffer_size": 10_000,
    "learning_starts": 1_000,
    "gamma": 0.98,
    "target_update_interval": 600,
    "train_freq": 16,
    "gradient_steps": 8,
    "exploration_fraction": 0.2,
    "exploration_final_eps": 0.07,
}
_ACROBOT = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
}
_LUNAR_LANDER_QR = {
    "learning_rate": "linear from 1.5e-3 to 0",
    "batch_size": 128,
    "buffer_size": 100_000,
    "learning_starts": 10_000,
    "gamma": 0.995,
    "target_update_interval": 1,
    "train_freq": 256,
    "gradient_steps": -1,
    "exploration_fraction": 0.24,
    "exploration_final_eps": 0.18,
}
NET = [256, 256]
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("sb3_dqn", "CartPole-v1"): _CARTPOLE | {"policy_kwargs": {"net_arch": NET}},
    ("sb3_dqn", "MountainCar-v0"): _MOUNTAIN_CAR | {"policy_kwargs": {"net_arch": NET}},
    ("sb3_dqn", "Acrobot-v1"): _ACROBOT | {"policy_kwargs": {"net_arch": NET}},
    ("sb3_dqn", "LunarLander-v3"): _ACROBOT | {"policy_kwargs": {"net_arch": NET}},  # the Zoo's are the same for both
    ("sb3_qr_dqn", "CartPole-v1"): _CARTPOLE | {"policy_kwargs": {"net_arch": NET, "n_quantiles": 10}},
    ("sb3_qr_dqn", "MountainCar-v0"): _MOUNTAIN_CAR | {"policy_kwargs": {"net_arch": NET, "n_quantiles": 25}},
    ("sb3_qr_dqn", "Acrobot-v1"): _ACROBOT | {"policy_kwargs": {"net_arch": NET, "n_quantiles": 25}},
    # The Zoo has 170 here: 100 ms of CPU for each of 110,000 updates, three hours a run. 25 are what it has for MountainCar and Acrobot.
    ("sb3_qr_dqn", "LunarLander-v3"): _LUNAR_LANDER_QR | {"policy_kwargs": {"net_arch": NET, "n_quantiles": 25}},
}


@dataclass(frozen=True)
class Job:
    name: str
    suite: str
    task: str
    peer: str
    env_id: str
    seed: int
    total_timesteps: int
    eval_interval: int
    eval_episodes: int
    episodes: int


def jobs_of(suite_name: str, seeds: tuple[int, ...] | None) -> list[Job]:
    suite = load_suite(suite_name)
    found = []
    for task in suite.tasks:
        group = next(group for group in plan_groups(suite, seeds) if group.task.name == task.name)
        config, stem = group.plans[0].config, group.name.split("__")[1]
        for peer in task.peers:
            if (peer, config.env_id) not in SETTINGS:
                raise UserError(f"suite {suite.name}: no settings of {peer} are known for {config.env_id}")
            for plan in group.plans:
                name, budget = f"{peer}__{stem}__seed{plan.config.seed}", (config.eval_interval, config.eval_episodes, plan.episodes)
                found.append(Job(name, suite.name, task.name, peer, config.env_id, plan.config.seed, task.total_timesteps, *budget))
    return found


def play(model: Any, env_id: str, first_seed: int, episodes: int) -> dict[str, float]:
    """Greedy episodes, each with a seed of its own."""
    env, returns, lengths = gym.make(env_id), [], []
    for episode in range(episodes):
        obs, _ = env.reset(seed=first_seed + episode)
        total, length, over = 0.0, 0, False
        while not over:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(int(action))
            total, length, over = total + float(reward), length + 1, terminated or truncated
        returns.append(total)
        lengths.append(length)
    env.close()
    return {
        "eval_return_mean": float(np.mean(returns)),
        "eval_return_std": float(np.std(returns)),
        "eval_return_min": float(np.min(returns)),
        "eval_return_max": float(np.max(returns)),
        "eval_length_mean": float(np.mean(lengths)),
        "eval_episodes": episodes,
    }


def run(job: Job) -> dict[str, Any]:
    import torch
    from sb3_contrib import QRDQN
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(1)
    settings = SETTINGS[job.peer, job.env_id]
    given = copy.deepcopy(settings)  # QRDQN adds to its policy_kwargs
    if isinstance(given["learning_rate"], str):
        given["learning_rate"] = lambda left: left * 1.5e-3
    model = (DQN if job.peer == "sb3_dqn" else QRDQN)("MlpPolicy", gym.make(job.env_id), seed=job.seed, device="cpu", **given)
    curve: list[list[float]] = []
    best: dict[str, Any] = {"mean": -np.inf, "step": 0, "weights": None}

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % job.eval_interval == 0:
                mean = play(model, job.env_id, 10_000 * (job.seed + 1), job.eval_episodes)["eval_return_mean"]
                curve.append([self.num_timesteps, mean])
                if mean > best["mean"]:
                    best.update(mean=mean, step=self.num_timesteps, weights=copy.deepcopy(model.policy.state_dict()))
            return True

    began = time.perf_counter()
    model.learn(job.total_timesteps, callback=Evaluate())
    took, fresh = time.perf_counter() - began, FRESH + 1_000 * job.seed  # episodes that no other seed is judged by
    final = play(model, job.env_id, fresh, job.episodes)
    updates = int(model._n_updates)
    model.policy.load_state_dict(best["weights"])
    about = machine(threads=1)
    return {
        "name": job.name,
        "suite": job.suite,
        "task": job.task,
        "algorithm": job.peer.replace("_", ":", 1),
        "label": "",
        "config_file": "benchmarks/reference.py",
        "config": {
            "algo": job.peer.replace("_", ":", 1),
            "env_id": job.env_id,
            "seed": job.seed,
            "total_timesteps": job.total_timesteps,
            "eval_interval": job.eval_interval,
            "eval_episodes": job.eval_episodes,
            "algo_kwargs": settings,
        },
        "seed": job.seed,
        "best": play(model, job.env_id, fresh, job.episodes),
        "final": final,
        "best_step": best["step"],
        "num_updates": updates,
        "wall_time_s": round(took, 1),
        "curve": curve,
        "git": {"commit": about["commit"], "dirty": about["uncommitted_changes"]},
        "versions": about["versions"],
        "machine": about,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="?", default="classic")
    parser.add_argument("--seeds", help="other than the suite's, such as 1,2 or 1-5")
    parser.add_argument("--only", default="", help="only runs whose name contains this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    try:
        wanted = jobs_of(options.suite, None if options.seeds is None else tuple(parse_seeds(options.seeds)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    wanted = [job for job in wanted if options.only in job.name]
    to_do = [job for job in wanted if not (options.results / f"{job.name}.json").exists()]
    print(f"{len(wanted)} runs, {len(wanted) - len(to_do)} done", flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        for record in pool.imap_unordered(run, to_do):
            write_record(options.results, record)
            best, final = (record[policy]["eval_return_mean"] for policy in ("best", "final"))
            print(
                f"{record['name']}: best {best:.1f} (step {record['best_step']}), final {final:.1f}, {record['wall_time_s']:.0f} s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
