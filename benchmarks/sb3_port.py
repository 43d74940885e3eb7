"""The Stable-Baselines3 code of the migration page and its port, side by side on CartPole: what both learn, and how long they take.

    make peers
    .peers/bin/python -m benchmarks.sb3_port --json benchmarks/results/sb3_port.json

Both blocks are read from docs/migrating-from-stable-baselines3.md and run as they stand there, but for the seed. What each has learned is
judged by Stable-Baselines3's own `evaluate_policy` over the same fresh episodes. Times are of `learn` alone; ours evaluates and
checkpoints meanwhile, theirs does not. The two take turns, so that a slow minute of the machine falls on both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.publish import ROOT
from rl_training.runtime.seeds import parse_seeds

PAGE = ROOT / "docs" / "migrating-from-stable-baselines3.md"
RECORD = ROOT / "benchmarks" / "results" / "sb3_port.json"
EPISODES = 100


def code(page: str) -> dict[str, str]:
    """The page's first block in another package's words, marked `py`, and the first in ours, marked `python`."""
    found = {language: re.search(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) for language in ("py", "python")}
    return {name: match[1] for name, match in zip(("stable-baselines3", "port"), found.values(), strict=True) if match}


def run(source: str, seed: int) -> dict[str, float]:
    """The block with this seed; its agent's return over fresh episodes, and the time of its `learn`, wall and processor."""
    import gymnasium as gym
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    before, learn, _ = re.split(r"^(\w+\.learn\(.*\))$", source.replace("seed=1", f"seed={seed}"), maxsplit=1, flags=re.MULTILINE)
    names: dict[str, Any] = {}
    exec(before, names)
    start = time.perf_counter(), time.process_time()
    exec(learn, names)
    took = time.perf_counter() - start[0], time.process_time() - start[1]
    env = Monitor(gym.make("CartPole-v1"))
    env.reset(seed=2026)
    mean, _ = evaluate_policy(names[learn.partition(".")[0]], env, n_eval_episodes=EPISODES)
    return {"return": float(mean), "seconds": took[0], "cpu_seconds": took[1]}


def table(results: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """As the page quotes them: every seed's return, and the medians of the times."""
    lines = ["| | return, per seed | mean | `learn`, median s | of processor time |", "| --- | --- | ---: | ---: | ---: |"]
    for name, runs in results.items():
        returns = [each["return"] for each in runs]
        times = [statistics.median(each[key] for each in runs) for key in ("seconds", "cpu_seconds")]
        each = ", ".join(f"{value:.1f}" for value in returns)
        lines.append(f"| {name} | {each} | {statistics.mean(returns):.1f} | {times[0]:.0f} | {times[1]:.0f} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", default="1-3")
    parser.add_argument("--json", type=Path, help="write the results here")
    args = parser.parse_args()
    import torch

    from benchmarks.common import machine

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sources, seeds = code(PAGE.read_text(encoding="utf-8")), parse_seeds(args.seeds)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where the port's runs go
        for seed in seeds:
            for name, source in sources.items():
                results[name].append(run(source, seed))
                print(name, "seed", seed, {key: round(value, 1) for key, value in results[name][-1].items()}, flush=True)
        os.chdir(ROOT)
    print("\n".join(table(results)))
    if args.json is not None:
        record = {"machine": machine(1), "seeds": seeds, "episodes": EPISODES, "code": sources, "results": results}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
