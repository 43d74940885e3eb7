"""Atari on one GPU: whole training loops as the command line runs them, in environment steps and updates a second.

    dqn        Nature network, batch 32, an update every 4 steps, 64 environments of ALE's own vector
    qr_dqn, iqn, rainbow_dqn   the same, with the settings of their shipped configs
    r2d2       64 sequences of 40 + 80 steps, LSTM 512, an update every 64 steps, 64 environments
    btr        IMPALA twice as wide, batch 256, an update every 64 steps, 64 environments
    pqn        128 environments, no replay
    envs       the environments alone, with random actions: what the loop cannot exceed

Each loop is trained for `--warmup` updates (compilation, capture, first kernels), then measured for `--seconds`, in a process of its own,
so that none inherits another's threads or memory. `--device cpu` makes the replay small, to try it where there is no GPU.

    python -m benchmarks.atari_gpu --json atari_gpu.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.types import EnvStep

CASES = ("envs", "dqn", "qr_dqn", "iqn", "rainbow_dqn", "r2d2", "btr", "pqn")


class Measure(Callback):
    """Begins its clock after `warmup` updates and ends the run `seconds` later."""

    def __init__(self, seconds: float, warmup: int, device: str) -> None:
        self.seconds, self.warmup, self.cuda = seconds, warmup, device == "cuda"
        self.began: float | None = None
        self.figures: dict[str, float] = {}

    def on_step(self, run: Run, step: EnvStep) -> None:
        clock = run.clock
        if self.began is None:
            if clock.updates >= self.warmup:
                self._wait()
                self.began, self.steps, self.updates = time.perf_counter(), clock.env_steps, clock.updates
        elif time.perf_counter() - self.began >= self.seconds:
            self._wait()
            taken = time.perf_counter() - self.began
            steps, updates = clock.env_steps - self.steps, clock.updates - self.updates
            self.figures = {"steps_per_second": steps / taken, "updates_per_second": updates / taken, "seconds": taken}
            run.stop("measured")

    def _wait(self) -> None:
        if self.cuda:
            import torch

            torch.cuda.synchronize()


def loop(case: str, options: argparse.Namespace, also: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The case's shipped config for the game, trained for a while, with `also` in place of what it says."""
    from rl_training.experiment.config import load_config

    changes: dict[str, Any] = {"device": options.device, "num_envs": options.num_envs, "checkpoint_interval": 0, "eval_interval": 0}
    changes |= {"eval_episodes": 1, "eval_max_steps": 50, "log_interval": 100_000_000, "seed": 1}
    if options.compile != "auto":
        changes["compile"] = options.compile == "on"
    if options.precision != "auto":
        changes["precision"] = options.precision
    kwargs: dict[str, Any] = {}
    if case == "pqn":
        changes["num_envs"] = 2 * options.num_envs
    else:
        small = options.device == "cpu"
        kwargs["learning_starts"] = options.learning_starts or (1_000 if small else 20_000)
        kwargs["buffer_capacity"] = options.replay or (20_000 if small else 1_000_000)
    changes |= also or {}
    kwargs |= changes.pop("algo_kwargs", {})
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(f"{case}/atari_{options.game}")
        config = config.replace(output_dir=folder, algo_kwargs={**config.algo_kwargs, **kwargs}, **changes)
        measure = Measure(options.seconds, options.warmup, options.device)
        began = time.perf_counter()
        result = config.spec.train_fn(config, callbacks=[measure])
        metadata = json.loads((Path(result.run_dir) / "metadata.json").read_text(encoding="utf-8"))
    said = {key: metadata[key] for key in ("device", "precision", "compile", "vectorization", "atari", "replay_device") if key in metadata}
    return {**measure.figures, "seconds_before": (measure.began or began) - began, "notes": said}


def environments(options: argparse.Namespace) -> dict[str, Any]:
    from rl_training.envs.factory import make_envs

    env_id = f"ALE/{options.game.title()}-v5"
    envs = make_envs(env_id, num_envs=options.num_envs, seed=1, vectorization="native")
    envs.reset()
    rng = np.random.default_rng(0)
    steps, began = -20, time.perf_counter()
    while steps < 0 or time.perf_counter() - began < options.seconds:
        envs.step(rng.integers(envs.single_action_space.n, size=options.num_envs))  # type: ignore[attr-defined]
        steps += 1
        if steps == 0:
            began = time.perf_counter()
    taken = time.perf_counter() - began
    envs.close()
    return {"steps_per_second": steps * options.num_envs / taken, "seconds": taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warmup", type=int, default=300, help="updates before the clock starts")
    parser.add_argument("--learning-starts", type=int, help="(default: 20,000; on the CPU 1,000)")
    parser.add_argument("--replay", type=int, help="transitions (default: 1,000,000; on the CPU 20,000)")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--precision", choices=("auto", "float32", "tf32", "bf16"), default="auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)  # what each process of its own is called with
    options = parser.parse_args()
    if options.one:
        found = environments(options) if options.one == "envs" else loop(options.one, options)
        print("RESULT " + json.dumps(found), flush=True)
        return
    results: dict[str, Any] = {}
    print(f"{'case':<14} {'steps/s':>10} {'updates/s':>10} {'before, s':>10}", flush=True)
    for case in options.cases.split(","):
        run = subprocess.run([sys.executable, "-m", "benchmarks.atari_gpu", *sys.argv[1:], "--one", case], capture_output=True, text=True)
        line = next((line for line in run.stdout.splitlines() if line.startswith("RESULT ")), None)
        results[case] = json.loads(line.removeprefix("RESULT ")) if line else {"error": run.stderr[-2_000:]}
        found = results[case]
        names = ("steps_per_second", "updates_per_second", "seconds_before")
        shown = [f"{found[name]:>10,.0f}" if name in found else f"{'-':>10}" for name in names]
        print(f"{case:<14} {' '.join(shown)}" + ("" if line else f"  failed: {found['error'].strip().splitlines()[-1:]}"), flush=True)
        if options.json:
            from benchmarks.common import machine

            given = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items() if key != "one"}
            options.json.write_text(json.dumps({"machine": machine(0), "options": given, "results": results}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
