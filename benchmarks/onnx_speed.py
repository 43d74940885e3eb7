"""Exported policies: the size of the files, and actions a second by onnxruntime beside the package's own `predict`.

    python -m benchmarks.onnx_speed --clock cpu --json benchmarks/results/onnx_speed.json

Both answer the same batches on one thread, in turns; a batch of 1 is one environment that waits for its action.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.common import Result, arguments, clock, compare, prepare, repeat_for, save
from rl_training.exchange import export
from rl_training.exchange.onnx_policy import OnnxPolicy
from rl_training.exchange.parity import random_observations
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.policy import Policy
from rl_training.runtime.workflows import fresh_policy

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "DQN, 2 × 128": ("dqn", "CartPole-v1", {"hidden_sizes": [128, 128]}),
    "Rainbow, 2 × 128": ("rainbow_dqn", "CartPole-v1", {"hidden_sizes": [128, 128]}),
    "IQN, 2 × 128": ("iqn", "CartPole-v1", {"hidden_sizes": [128, 128]}),
    "R2D2, LSTM 128": ("r2d2", "CartPole-v1", {"features_dim": 64, "recurrent_hidden_size": 128}),
    "PPO, 2 × 64, Gaussian": ("ppo", "Pendulum-v1", {"hidden_sizes": [64, 64]}),
    "DQN, MinAtar Breakout": ("dqn", "MinAtar/Breakout-v1", {}),
}
BATCHES = (1, 64)
SECONDS = 0.15  # of each contender in a round


def measure(name: str, rounds: int) -> Iterator[Result]:
    algo, env_id, algo_kwargs = CASES[name]
    policy = fresh_policy(TrainConfig(algo=algo, env_id=env_id, seed=0, total_timesteps=1, output_dir="unused", algo_kwargs=algo_kwargs))
    said = {"row": algo, "env_id": env_id, "step": 0, "version": "0", "commit": "none", "spaces": policy.spaces, "wrappers": {}}
    began = clock()
    content = export._onnx(policy, said)
    sizes[name] = {"parameters": policy.network.facts.parameters, "export_seconds": clock() - began, "onnx": len(content)}
    sizes[name]["pt2"] = len(export._torch_export(policy, said))
    exported = OnnxPolicy(content, source=name)
    for batch_size in BATCHES:
        package, onnx = _acting(policy, exported, batch_size)
        contenders = {"ours": repeat_for(package, SECONDS), "onnxruntime": repeat_for(onnx, SECONDS)}
        yield compare(f"{name}, batch of {batch_size}", "batches", contenders, rounds=rounds)


sizes: dict[str, dict[str, float]] = {}
"""Policy → parameters, bytes of each file, seconds to export and check it."""


def _acting(policy: Policy, exported: OnnxPolicy, batch_size: int) -> tuple[Any, Any]:
    """Steps of each, with the state carried on."""
    obs, starts = random_observations(policy, batch_size, np.random.default_rng(0)), np.zeros(batch_size, bool)
    fresh = exported.initial_state(batch_size)
    names = ("h", "c")[: len(fresh)]

    def package(count: int) -> None:
        state = policy.network.initial_state(batch_size)
        for _ in range(count):
            _, state = policy.predict(obs, state, starts)

    def onnx(count: int) -> None:
        state = dict(zip(names, fresh, strict=True))
        for _ in range(count):
            outputs = exported.run({"obs": obs, **state, **({"episode_start": starts} if names else {})})
            state = {name: outputs[f"next_{name}"] for name in names}

    return package, onnx


def main() -> None:
    options = arguments(__doc__, rounds=9).parse_args()
    prepare(options)
    results = [result for name in CASES if options.only in name for result in measure(name, options.rounds)]
    print(json.dumps(sizes, indent=1, ensure_ascii=False))
    save(options.json, options, results)
    if options.json is not None:
        record = json.loads(options.json.read_text(encoding="utf-8"))
        options.json.write_text(json.dumps({**record, "sizes": sizes}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
