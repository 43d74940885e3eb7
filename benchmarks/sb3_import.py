"""Models that Stable-Baselines3 and sb3-contrib trained act the same here; ours are evaluated by their `evaluate_policy`.

    make peers
    .peers/bin/python -m benchmarks.sb3_import --json benchmarks/results/sb3_import.json

`--fixtures tests/data` writes the two small zips of the tests, with what SB3 says of a few observations.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy

import rl_training
from benchmarks.common import machine
from rl_training.exchange.sb3 import import_sb3
from rl_training.runtime.workflows import load_policy

OBSERVATIONS = 1_000
CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "DQN, its defaults": (DQN, "CartPole-v1", {}),
    "DQN, tanh, 32": (DQN, "Acrobot-v1", {"net_arch": [32], "activation_fn": torch.nn.Tanh}),
    "DQN, one-hot observations, linear": (DQN, "FrozenLake-v1", {"net_arch": []}),
    "QR-DQN, its defaults": (QRDQN, "CartPole-v1", {}),
    "QR-DQN, tanh, 7 quantiles": (QRDQN, "Acrobot-v1", {"net_arch": [16, 8], "activation_fn": torch.nn.Tanh, "n_quantiles": 7}),
}
FIXTURES = {
    "sb3_dqn": (DQN, {"net_arch": [8, 6]}),
    "sb3_qr_dqn": (QRDQN, {"net_arch": [8], "activation_fn": torch.nn.Tanh, "n_quantiles": 5}),
}


def trained(kind: Any, env_id: str, policy_kwargs: dict[str, Any], steps: int) -> Any:
    options = {"learning_starts": 100, "learning_rate": 1e-3, "buffer_size": 10_000, "target_update_interval": 250, "seed": 0}
    return kind("MlpPolicy", env_id, policy_kwargs=policy_kwargs, device="cpu", **options).learn(steps)


def their_q_values(model: Any, observations: Any) -> Any:
    with torch.no_grad():
        tensor, _ = model.policy.obs_to_tensor(observations)
        return (model.q_net(tensor) if isinstance(model, DQN) else model.quantile_net(tensor).mean(1)).numpy()


def observations_of(env_id: str, count: int, act: Callable[[Any], Any]) -> Any:
    """What an episode after another shows when half of the actions are random."""
    env, rng, seen = gym.make(env_id), np.random.default_rng(0), []
    while len(seen) < count:
        obs, _ = env.reset(seed=int(rng.integers(1 << 30)))
        done = False
        while not done and len(seen) < count:
            seen.append(obs)
            action = env.unwrapped.action_space.start + rng.integers(env.unwrapped.action_space.n) if rng.random() < 0.5 else act(obs)
            obs, _, terminated, truncated, _ = env.step(int(action))
            done = terminated or truncated
    return np.stack(seen)


def compare(name: str, steps: int, folder: Path) -> dict[str, Any]:
    kind, env_id, policy_kwargs = CASES[name]
    model = trained(kind, env_id, policy_kwargs, steps)
    model.save(folder / "model.zip")
    checkpoint = import_sb3(folder / "model.zip", folder / "agent", env_id=env_id)
    policy = load_policy(checkpoint)
    observations = observations_of(env_id, OBSERVATIONS, lambda obs: model.predict(obs, deterministic=True)[0])
    theirs = their_q_values(model, observations)
    discrete = gym.make(env_id).observation_space
    read = np.eye(discrete.n, dtype=np.float32)[observations] if isinstance(discrete, gym.spaces.Discrete) else observations
    ours, _ = policy.q_values(read)
    actions, _ = model.predict(observations, deterministic=True)
    same = int((policy.predict(read)[0] == actions).sum())
    return {
        "model": name,
        "environment": env_id,
        "observations": len(observations),
        "same_actions": same,
        "largest_difference": float(np.abs(ours - theirs).max()),
        "largest_q_value": float(np.abs(theirs).max()),
    }


def evaluated(folder: Path) -> dict[str, Any]:
    """Our agents in SB3's own evaluation: a batch of observations, the recurrent state threaded by it."""
    found = {}
    for name, agent in {
        "DQN": rl_training.DQN("CartPole-v1", output_dir=folder, learning_starts=100, hidden_sizes=[16]),
        "DRQN": rl_training.DRQN("CartPole-v1", output_dir=folder, learning_starts=100, features_dim=8, recurrent_hidden_size=8),
        "PPO": rl_training.PPO("Pendulum-v1", output_dir=folder, hidden_sizes=[16], num_steps=250),
    }.items():
        agent.learn(500)
        mean, std = evaluate_policy(agent, gym.make(agent.config.env_id), n_eval_episodes=5, warn=False)
        found[name] = {"environment": agent.config.env_id, "return_mean": float(mean), "return_std": float(std)}
    return found


def write_fixtures(folder: Path) -> None:
    """Small zips as SB3 wrote them, less what it says of this machine, deflated; and their Q-values."""
    answers: dict[str, Any] = {}
    for name, (kind, policy_kwargs) in FIXTURES.items():
        model = trained(kind, "CartPole-v1", policy_kwargs, 300)
        with tempfile.TemporaryDirectory() as made:
            model.save(Path(made) / "model.zip")
            with zipfile.ZipFile(Path(made) / "model.zip") as whole, zipfile.ZipFile(folder / f"{name}.zip", "w") as kept:
                for entry in whole.infolist():
                    if entry.filename != "system_info.txt":
                        kept.writestr(entry.filename, whole.read(entry), zipfile.ZIP_DEFLATED)
        observations = np.random.default_rng(0).uniform(-1, 1, (10, 4)).astype(np.float32)
        answers[name] = {"obs": observations.tolist(), "q_values": their_q_values(model, observations).tolist()}
    (folder / "sb3_q_values.json").write_text(json.dumps(answers, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3_000, help="of training there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fixtures", type=Path)
    arguments = parser.parse_args()
    if arguments.fixtures is not None:
        write_fixtures(arguments.fixtures)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for number, name in enumerate(CASES):
            (place := Path(folder) / str(number)).mkdir()
            rows.append(compare(name, arguments.steps, place))
            print(rows[-1])
        record = {"machine": machine(1), "training_steps": arguments.steps, "imported": rows, "evaluate_policy": evaluated(Path(folder))}
    print(record["evaluate_policy"])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
