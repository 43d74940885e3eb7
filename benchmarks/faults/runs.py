"""Small runs, what is left of them, and how it is judged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.children import Ended, command, run
from tests.resume_harness import run_config

TIMEOUT = 120.0  # of a command that does well: a loaded machine is no fault


def tiny(algo: str = "dqn", *, num_envs: int = 1, total: int = 240, **changes: Any) -> dict[str, Any]:
    """A run of a fraction of a second that evaluates, logs, checkpoints and rotates."""
    config = run_config(algo, num_envs=num_envs, total_timesteps=total)
    config |= {"eval_interval": 100, "eval_episodes": 1, "checkpoint_interval": 60, "log_interval": 20}
    config["algo_kwargs"] = (
        {**config["algo_kwargs"], "hidden_sizes": [8]} if "hidden_sizes" in config["algo_kwargs"] else config["algo_kwargs"]
    )
    return {**config, **changes}


def write_config(config: dict[str, Any], folder: Path) -> Path:
    """The config as a file in `folder`, where the run's directory will be too."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**config, "output_dir": str(folder)}), encoding="utf-8")
    return path


def run_directory(folder: Path) -> Path | None:
    """The run in `folder`, or None before there is one."""
    runs = sorted(path.parent for path in folder.glob("*/config.yaml"))
    return runs[0] if runs else None


def trained(config: dict[str, Any], folder: Path) -> Path:
    """The directory of an undisturbed run."""
    ended = run(command("train", "--config", write_config(config, folder), "--quiet"), timeout=TIMEOUT, cwd=folder)
    found = run_directory(folder)
    if ended.code != 0 or found is None:
        raise RuntimeError(f"an undisturbed run ended with exit code {ended.code}: {ended.last_line}")
    return found


def part_way(config: dict[str, Any], folder: Path, steps: int) -> Path:
    """The directory of a run that stands at `steps`, with its end (and its schedules) where the config has them."""
    whole = trained({**config, "total_timesteps": steps, "schedule_timesteps": config["total_timesteps"]}, folder)
    return whole


def broken(path: Path, *, replay: bool = False) -> str | None:
    """What is wrong with the checkpoint that `path` leads to, or None where all of it can be read."""
    from rl_training.errors import UserError
    from rl_training.experiment.checkpointing import open_checkpoint

    try:
        checkpoint = open_checkpoint(path)
        checkpoint.load_model()
        checkpoint.load_training()
        if checkpoint.load_replay() is None and replay:
            return f"{checkpoint.path.name} has no replay"
    except UserError as error:
        return str(error)
    return None


def listed(run_dir: Path) -> list[int]:
    """The steps of the checkpoints that stand in a run, whole or not."""
    return sorted(int(path.name[5:]) for path in run_dir.glob("checkpoints/step_*") if path.name[5:].isdigit())


def resumable_step(run_dir: Path) -> int:
    """The step of the newest whole checkpoint to go on from, by the run's path; -1 where there is none."""
    from rl_training.errors import UserError
    from rl_training.experiment.checkpointing import open_checkpoint

    try:
        checkpoint = open_checkpoint(run_dir)
        checkpoint.load_training()
        checkpoint.load_replay()
    except UserError:
        return -1
    return checkpoint.step if checkpoint.manifest.get("for_resume", True) else -1


def snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    """What stands in a folder: changes whenever anything is written, made, moved or removed there."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            status = os.lstat(path)
            found[os.path.relpath(path, folder)] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def changed(before: dict[str, tuple[int, ...]], after: dict[str, tuple[int, ...]]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def verdict(ended: Ended, codes: tuple[int, ...]) -> tuple[str, str] | None:
    """What is wrong with how a command ended, if anything: it must end, by itself, with one of `codes`, and say why in one line."""
    if ended.code is None:
        return "hang", f"after {ended.seconds:.0f} s: {ended.last_line}"
    if ended.traceback:
        return "traceback", ended.last_line
    if ended.code in (132, 134, 135, 136, 139):
        return "crash", f"exit code {ended.code}: {ended.last_line}"
    if ended.code not in codes:
        return "wrong exit code", f"{ended.code} instead of {' or '.join(map(str, codes))}: {ended.last_line}"
    if ended.code != 0 and len(ended.lines) != 1:
        return "not one line", f"exit code {ended.code} with {len(ended.lines)} lines: {' | '.join(ended.lines[:3])}"
    if ended.orphans:
        return "orphans", f"{ended.orphans} processes left behind"
    return None


def read_records(run_dir: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
