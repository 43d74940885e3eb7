"""Kill a training run with SIGKILL, resume it, and compare what it ends with to an uninterrupted run.

Used by tests/test_exact_resume.py, through the command line in processes of their own, as it is for users; benchmarks/faults takes its runs
and its comparison for many more kills.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILES = ("model.safetensors", "training.safetensors", "replay.safetensors")
TIMEOUT = 900.0  # for a run that hangs: a busy machine may be slow

# Small parts that still do everything often: the ring wraps around, targets follow, windows and chunks are open at most moments.
SETTINGS: dict[str, Any] = {
    "hidden_sizes": [16, 16],
    "batch_size": 16,
    "buffer_capacity": 400,
    "learning_starts": 64,
    "train_frequency": 4,
    "target_update_interval": 100,
    "lr_schedule": "linear",
    # recurrent rows
    "features_dim": 16,
    "recurrent_hidden_size": 16,
    "sequence_length": 8,
    "sequence_overlap": 2,
    # on-policy rows
    "num_steps": 16,
    "minibatch_size": 16,
}


@dataclass(frozen=True)
class Outcome:
    """What a campaign did to one run: where each kill fell (the last step logged by then) and what differed in the end."""

    kills: tuple[int, ...]
    differences: tuple[str, ...]


def run_config(algo: str, *, num_envs: int, total_timesteps: int = 1_200, seed: int = 3) -> dict[str, Any]:
    """A short run of any row, with checkpoints, evaluations and records often enough to be killed between and inside all of them."""
    from rl_training.experiment.registry import get_algorithm_spec

    keys = get_algorithm_spec(algo).settings.model_fields
    return {
        "algo": algo,
        "env_id": "CartPole-v1",
        "seed": seed,
        "total_timesteps": total_timesteps,
        "output_dir": "set by the harness",
        "device": "cpu",
        "threads": 1,
        "compile": False,
        "num_envs": num_envs,
        "eval_interval": 300,
        "eval_episodes": 2,
        "log_interval": 10,
        "checkpoint_interval": 150,
        "algo_kwargs": {key: value for key, value in SETTINGS.items() if key in keys},
    }


def killed_and_resumed(config: dict[str, Any], workspace: Path, *, kills: int, seed: int) -> Outcome:
    """Trains `config` twice, once undisturbed and once killed `kills` times at random moments; `workspace` holds both runs."""
    reference = _finish(_train(config, workspace / "reference"), workspace / "reference")
    rng = random.Random(seed)
    total = int(config["total_timesteps"])
    moments = sorted(rng.randrange(total) for _ in range(kills))  # the first may come before there is any checkpoint
    output = workspace / "killed"
    process = _train(config, output)
    fell: list[int] = []
    for moment in moments:
        step = _kill_at(process, output, moment, jitter=rng.uniform(0.0, 0.03))
        if step is None:
            break  # it was done before the kill came: the comparison still holds
        fell.append(step)
        run = _run_directory(output)
        process = _train(config, output) if run is None else _cli("resume", "--checkpoint", str(run), "--quiet")
    resumed = _finish(process, output)
    return Outcome(tuple(fell), tuple(differences(reference, resumed, total)))


def differences(reference: Path, other: Path, step: int) -> list[str]:
    """The names of what differs: bytes of the final checkpoint's files, which checkpoint is best, and the records (times left out)."""
    found = []
    final = Path("checkpoints") / f"step_{step}"
    for name in FILES:
        mine, theirs = reference / final / name, other / final / name
        if mine.exists() != theirs.exists() or (mine.exists() and mine.read_bytes() != theirs.read_bytes()):
            found.append(name)
    if not (reference / final / FILES[0]).exists():
        found.append(f"no {final} in the reference")
    if _link(reference, "best") != _link(other, "best"):
        found.append("best")
    a, b = _records(reference), _records(other)
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        one, two = ({} if at >= len(records) else records[at] for records in (a, b))
        keys = sorted(key for key in {*one, *two} if one.get(key) != two.get(key))
        found.append(f"metrics.jsonl ({len(a)} and {len(b)} records; record {at} at step {one.get('step')} differs in {', '.join(keys)})")
    return found


def _records(run: Path) -> list[dict[str, Any]]:
    """What was measured, without how long it took."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if not key.startswith("time/")} for line in lines]


def _link(run: Path, name: str) -> str | None:
    link = run / "checkpoints" / name
    return os.readlink(link) if link.is_symlink() else None


def _cli(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rl_training", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def _train(config: dict[str, Any], output: Path) -> subprocess.Popen[str]:
    output.mkdir(parents=True, exist_ok=True)
    path = output / "config.yaml"
    path.write_text(yaml.safe_dump({**config, "output_dir": str(output)}), encoding="utf-8")
    return _cli("train", "--config", str(path), "--quiet")


def _run_directory(output: Path) -> Path | None:
    """The run in `output`. None before there is one: a run killed before its config was written leaves nothing to resume."""
    runs = sorted(path.parent for path in output.glob("*/config.yaml"))
    assert len(runs) <= 1, f"resume made a second run: {runs}"
    return runs[0] if runs else None


def _finish(process: subprocess.Popen[str], output: Path) -> Path:
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, f"exit {process.returncode}: {errors}"
    run = _run_directory(output)
    assert run is not None
    return run


def _kill_at(process: subprocess.Popen[str], output: Path, step: int, *, jitter: float) -> int | None:
    """SIGKILL a little (`jitter` seconds) after the run has logged `step`. The step it had logged by then, or None if it had ended."""
    deadline = time.monotonic() + TIMEOUT
    while process.poll() is None and _last_step(output) < step:
        assert time.monotonic() < deadline, f"step {step} was not reached in {TIMEOUT:.0f} s"
        time.sleep(0.002)
    time.sleep(jitter)
    process.kill()
    _, errors = process.communicate()
    if process.returncode >= 0:
        assert process.returncode == 0, f"exit {process.returncode}: {errors}"
        return None
    return _last_step(output)


def _last_step(output: Path) -> int:
    """The last step in the run's records; 0 before the first one. A half-written last line is left out."""
    run = _run_directory(output)
    if run is None or not (run / "metrics.jsonl").exists():
        return 0
    with (run / "metrics.jsonl").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
        lines = file.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["step"]) if lines else 0
