"""Distributed runs, measured: `python -m benchmarks.distributed scaling | learner | driver | overhead`.

    scaling    an environment that waits 5 ms a step, 1 → 16 actors: steps/s against one actor's, times their number
    learner    the same with more and more updates a step: where the learner binds, and the share of its time it waits
    driver     what the driver is busy with there: an update a step, in one process that is timed part by part
    overhead   processor time that an environment step of CartPole takes, local and with one actor: of the driver, the actor and Ray

Each run is a process of its own, through the command line, as it is for users. Results are added to benchmarks/results/distributed.json.
What r2d2 learns with 4 actors: `python -m benchmarks.learning configs/r2d2/cartpole_velocity_free.yaml --set actors=4 --label actors4`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.distributed_envs import WAITING
from benchmarks.driver_time import driver_time
from benchmarks.processor_time import by_role
from rl_training.ledger.machine import machine

RECORD = Path(__file__).resolve().parent / "results" / "distributed.json"


def config(env_id: str, *, steps: int, actors: int, algo: str = "dqn", **changes: Any) -> dict[str, Any]:
    """A run that is nothing but collecting and learning: one log at its end, no evaluation but a short last one."""
    settings = {"learning_starts": 64, "buffer_capacity": 50_000, "batch_size": 32, "hidden_sizes": [64, 64], **changes.pop("settings", {})}
    base = {
        "algo": algo,
        "env_id": env_id,
        "seed": 1,
        "total_timesteps": steps,
        "eval_interval": 0,
        "eval_episodes": 1,
        "eval_max_steps": 20,
    }
    quiet = {"log_interval": max(1, steps // 10), "checkpoint_interval": 0, "checkpoint_replay": False, "compile": False, "device": "cpu"}
    return {**base, **quiet, "actors": actors, "algo_kwargs": settings, **changes}


def run(values: dict[str, Any]) -> list[dict[str, float]]:
    """Trains; the records of the run's second half, when everything has started. Each has the processor seconds taken until then."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump({**values, "output_dir": folder}))
        command = [sys.executable, "-m", "rl_training", "train", "--config", str(file), "--quiet"]
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        records: list[dict[str, float]] = []
        while (ended := process.poll()) is None:
            taken = by_role(process.pid)
            records += [record | taken for record in _written(Path(folder))[len(records) :]]
            time.sleep(0.02)
    if ended:
        raise SystemExit(f"{' '.join(command)}: exit code {ended}")
    return records[len(records) // 2 :]


def _written(folder: Path) -> list[dict[str, float]]:
    """The records of a run's progress so far."""
    lines = [line for file in folder.glob("*/metrics.jsonl") for line in file.read_text().split("\n")[:-1]]  # the last is being written
    return [record for record in map(json.loads, lines) if "time/fps" in record]


def rate(records: list[dict[str, float]]) -> float:
    """Environment steps a second, from the first of these records to the last."""
    first, last = records[0], records[-1]
    return (last["step"] - first["step"]) / (last["time/time_elapsed"] - first["time/time_elapsed"])


def scaling(most: int, seconds: float) -> list[dict[str, float]]:
    """An update for every 64 steps: the learner has next to nothing to do."""
    rows: list[dict[str, float]] = []
    counts = [count for count in (1, 2, 4, 8, 16) if count <= most]
    for count in counts:
        steps = int(seconds * 200 * count)
        records = run(config(f"benchmarks.distributed_envs:{WAITING}", steps=steps, actors=count, settings={"train_frequency": 64}))
        row = {"actors": count, "steps_per_s": rate(records), "waiting_share": _mean(records, "distributed/waiting_share")}
        row["of_linear"] = row["steps_per_s"] / (rows[0]["steps_per_s"] * count) if rows else 1.0
        rows.append(row)
        print(row, flush=True)
    return rows


def learner(actors: int, seconds: float) -> list[dict[str, float]]:
    """More and more updates a step. The learner binds where it no longer waits."""
    rows = []
    for frequency in (32, 8, 4, 2, 1):
        steps = int(seconds * 200 * actors)
        records = run(config(f"benchmarks.distributed_envs:{WAITING}", steps=steps, actors=actors, settings={"train_frequency": frequency}))
        per_second = rate(records)
        updates = per_second / frequency
        row = {"train_frequency": frequency, "steps_per_s": per_second, "updates_per_s": updates}
        row |= {name: _mean(records, f"distributed/{name}") for name in ("waiting_share", "staleness_updates")}
        rows.append(row)
        print(row, flush=True)
    return rows


def driver(actors: int, seconds: float) -> list[dict[str, float]]:
    """The last row of `learner`, taken apart."""
    steps = int(seconds * 200 * actors)
    settings = {"train_frequency": 1}
    row = {"actors": actors, **driver_time(config(f"benchmarks.distributed_envs:{WAITING}", steps=steps, actors=actors, settings=settings))}
    print(row, flush=True)
    return [row]


def overhead(steps: int) -> list[dict[str, float]]:
    """CartPole, whose own step takes some 10 µs; one update for every 64 steps. Microseconds of a processor for each environment step."""
    rows = []
    for actors, num_envs in ((0, 1), (1, 1), (0, 16), (1, 16)):
        records = run(config("CartPole-v1", steps=steps, actors=actors, num_envs=num_envs, settings={"train_frequency": 64}))
        row = {"actors": actors, "num_envs": num_envs, "steps_per_s": rate(records)}
        first, last = records[0], records[-1]
        row |= {f"us_{role}": 1e6 * (last[role] - first[role]) / (last["step"] - first["step"]) for role in ("driver", "actors", "ray")}
        rows.append(row)
        print(row, flush=True)
    return rows


def _mean(records: list[dict[str, float]], name: str) -> float:
    values = [record[name] for record in records if name in record]
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scaling", "learner", "driver", "overhead"))
    parser.add_argument("--actors", type=int, default=16, help="at most (scaling), or of every run (learner, driver)")
    parser.add_argument("--seconds", type=float, default=30.0, help="that a run of waiting environments would take without overhead")
    parser.add_argument("--steps", type=int, default=40_000, help="of a run of CartPole")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    if options.what == "scaling":
        rows = scaling(options.actors, options.seconds)
    elif options.what == "learner":
        rows = learner(options.actors, options.seconds)
    elif options.what == "driver":
        rows = driver(options.actors, options.seconds)
    else:
        rows = overhead(options.steps)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    load = f"{before:.0f} to {os.getloadavg()[0]:.0f}"  # others' work shows in everything but processor time
    record[options.what] = {"machine": machine(1, also=("ray",)), "options": vars(options), "load": load, "rows": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
