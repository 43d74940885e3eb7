"""SIGKILL at random moments to the actors, the driver and the shards of distributed runs: `python -m benchmarks.distributed_faults`.

Every item carries its id (distributed_envs.Numbered). When a run has ended, its replay is read: an item that is torn (made of two
episodes, or of steps that do not follow each other), doubled, or missing between two that are there is wrong. So is a run that hangs, ends
with another exit code than 0, or says nothing of what was killed; and a driver whose memory grows. Actors must end within 10 s of
their driver.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.distributed_envs import NUMBERED

RECORD = Path(__file__).resolve().parent / "results" / "distributed_faults.json"
TIMEOUT = 600.0  # a run that is not done then hangs
SETTLE = 4.0  # seconds a new process is left alone: ten deaths without a block between them end a run, as they should
ROWS = ("dqn", "prioritized_dqn", "r2d2")


@dataclass
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    items: int = 0
    said: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_end_s: float = 0.0  # of actors whose driver was killed
    growth_mib: list[float] = field(default_factory=list)  # of a driver that ended by itself, from its 30th second on


def config(algo: str, *, steps: int, shards: int, folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "learning_starts": 200,
        "buffer_capacity": 4 * steps,
        "batch_size": 16,
        "hidden_sizes": [16],
        "train_frequency": 16,
    }
    if algo == "r2d2":
        settings |= {"features_dim": 8, "recurrent_hidden_size": 8, "sequence_length": 10, "n_step": 1, "burn_in": 0, "sequence_overlap": 0}
    return {
        "algo": algo,
        "env_id": f"benchmarks.distributed_envs:{NUMBERED}",
        "env_kwargs": {"seconds": 0.002},
        "seed": 1,
        "total_timesteps": steps,
        "output_dir": str(folder),
        "num_envs": 2,
        "actors": 3,
        "replay_shards": shards,
        "eval_interval": 0,
        "eval_episodes": 1,
        "log_interval": 500,
        "checkpoint_interval": 2_000,
        "compile": False,
        "device": "cpu",
        "algo_kwargs": settings,
    }


# Processes


def processes() -> dict[int, tuple[int, str, float]]:
    """pid → (parent, what it is called, seconds since it began)."""
    found = {}
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                name = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(folder.name)] = int(fields[1]), name, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return found


def workers_of(driver: int, kind: str) -> list[int]:
    """Ray's processes of this kind that the driver's own Ray started, and that have been there for a while."""
    alive = processes()

    def began_by_driver(pid: int) -> bool:
        while pid in alive and pid != 1:
            if pid == driver:
                return True
            pid = alive[pid][0]
        return False

    return [pid for pid, (_, name, age) in alive.items() if name.startswith(f"ray::{kind}") and age > SETTLE and began_by_driver(pid)]


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def memory_mib(pid: int) -> float | None:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else None


# One run


def play(algo: str, shards: int, plan: Counter[str], steps: int, rng: random.Random, tally: Tally) -> None:
    """Trains to the end, with these kills on the way."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "config.yaml").write_text(yaml.safe_dump(config(algo, steps=steps, shards=shards, folder=folder / "runs")))
        said = folder / "said"
        arguments = ["train", "--config", str(folder / "config.yaml"), "--quiet"]
        left, began = Counter(plan), time.monotonic()
        while True:
            code, killed = one_process(arguments, said, left, rng, tally, began)
            if code != 137 or not killed:
                break
            runs = list((folder / "runs").glob("*/config.yaml"))
            arguments = ["resume", "--checkpoint", str(runs[0].parent), "--quiet"] if runs else arguments
        text = said.read_text()
        tally.runs += 1
        where = f"{algo}, {shards} shards"
        if code is None:
            tally.wrong.append(f"{where}: hangs")
            return
        if code != 0:
            tally.wrong.append(f"{where}: ended with {code}: {text.splitlines()[-1:]}")
            return
        tally.said["actor is started again"] += len(re.findall(r"actor \d+ is started again", text))
        tally.said["shard died"] += len(re.findall(r"replay shard \d+ died", text))
        if left.total():
            tally.wrong.append(f"{where}: ended before {dict(left)} could be killed")
        check_items(next((folder / "runs").glob("*")), where, lost_shards=plan["shard"] > 0, tally=tally)


def one_process(
    arguments: list[str], said: Path, left: Counter[str], rng: random.Random, tally: Tally, began: float
) -> tuple[int | None, bool]:
    """Its exit code (None: it hangs), and whether we killed it."""
    with said.open("a") as file:
        driver = subprocess.Popen(
            [sys.executable, "-m", "rl_training", "--import", "benchmarks.distributed_envs", *arguments],
            stderr=file,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    first: float | None = None
    last: float | None = None
    started = time.monotonic()
    next_kill = started + rng.uniform(4.0, 12.0)
    while driver.poll() is None:
        time.sleep(0.2)
        last = memory_mib(driver.pid) or last
        if first is None and time.monotonic() - started > 30.0:  # everything is loaded by then
            first = last
        if time.monotonic() - began > TIMEOUT:
            os.killpg(driver.pid, signal.SIGKILL)
            return None, False
        if time.monotonic() < next_kill or not left.total():
            continue
        kind = rng.choice(sorted(left.elements()))
        if kind == "driver":
            actors = workers_of(driver.pid, "ActorProcess")
            if not actors:
                continue
            driver.kill()
            driver.wait()
            left[kind] -= 1
            tally.kills[kind] += 1
            end_of_actors(actors, tally)
            return 137, True
        victims = workers_of(driver.pid, {"actor": "ActorProcess", "shard": "ShardProcess"}[kind])
        if victims and kill(rng.choice(victims)):
            left[kind] -= 1
            tally.kills[kind] += 1
            next_kill = time.monotonic() + rng.uniform(0.3, 4.0)
    if first is not None and last is not None:
        tally.growth_mib.append(last - first)
    return driver.returncode, False


def end_of_actors(actors: list[int], tally: Tally) -> None:
    """They must end within 10 s of their driver."""
    began = time.monotonic()
    while any(pid in processes() for pid in actors):
        if time.monotonic() - began > 10.0:
            tally.wrong.append("actors outlive their driver by 10 s")
            return
        time.sleep(0.1)
    tally.slowest_end_s = max(tally.slowest_end_s, time.monotonic() - began)


# What is in the replay


def check_items(run: Path, where: str, *, lost_shards: bool, tally: Tally) -> None:
    from rl_training.experiment.checkpointing import open_checkpoint
    from rl_training.experiment.state_files import join_state, read_tensors

    checkpoint = open_checkpoint(run)
    states = [checkpoint.load_replay()]
    if checkpoint.shard_files:
        states = [
            join_state(tree, read_tensors(checkpoint.path / f"{name}.safetensors", digest), source=name)
            for name, (tree, digest) in checkpoint.shard_files.items()
        ]
    steps = np.concatenate([stored_steps(state) for state in states if state is not None])  # [n, 3]: seed, step, step led to
    tally.items += len(steps)
    torn = int((steps[:, 2] != steps[:, 1] + 1).sum())
    ids, counts = np.unique(steps[:, :2], axis=0, return_counts=True)
    doubled = int((counts > 1).sum())
    gaps = 0
    for seed in np.unique(ids[:, 0]):
        mine = np.sort(ids[ids[:, 0] == seed, 1])
        gaps += int(mine[0] != 0) + int((np.diff(mine) != 1).sum())
    if torn or doubled or (gaps and not lost_shards):
        tally.wrong.append(f"{where}: {torn} torn, {doubled} doubled, {gaps} gaps in {len(steps)} steps")


def stored_steps(state: dict[str, Any]) -> Any:
    """[n, 3] int64: the episode's seed, the step, and the step it led to (-1 where that is another episode's), of every step stored."""
    fields = {}
    for text in state["storage"]["fields"]:
        name, _, kind = text.partition(" ")
        dtype, _, shape = kind.partition("[")
        fields[name] = (dtype, tuple(int(each) for each in shape.rstrip("]").split(",") if each.strip()))
    rows = state["storage"]["rows"].numpy()
    values = columns(rows, fields)
    if "end" not in fields:
        obs, following = values["obs"][:, None], values["next_obs"][:, None]
        taken = np.ones((len(rows), 1), bool)
    else:
        obs, following = values["obs"][:, :-1], values["obs"][:, 1:]
        time_ = np.arange(obs.shape[1])
        taken = (time_ >= values["begin"][:, None]) & (time_ < values["end"][:, None])
    now, then = obs[taken].astype(np.int64), following[taken].astype(np.int64)
    same = (now[:, :2] == then[:, :2]).all(1)
    return np.stack([(now[:, 0] << 16) | now[:, 1], now[:, 2], np.where(same, then[:, 2], -1)], axis=1)


def columns(rows: Any, fields: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    """A replay's fields, out of its packed rows: a storage of the same fields takes them apart."""
    import torch

    from rl_training.data.storage import Field, RingStorage

    storage = RingStorage(len(rows), {name: Field(shape, getattr(torch, dtype)) for name, (dtype, shape) in fields.items()}, "cpu")
    state = {**storage.state_dict(), "rows": torch.from_numpy(rows), "size": len(rows), "position": 0}
    storage.load_state_dict(state)
    return {name: storage.values(name).numpy() for name in fields}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=54, help="kills of actors, over all rows (default: %(default)s)")
    parser.add_argument("--drivers", type=int, default=12, help="kills of the driver (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=12, help="kills of shards (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40_000, help="of each run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, tally, began = random.Random(options.seed), Tally(), time.monotonic()
    for algo in ROWS:  # of each row a run with its replay beside the learner, and one in shards
        plain = Counter(actor=options.actors // 6, driver=options.drivers // 6)
        sharded = Counter(actor=options.actors // 6, driver=options.drivers // 6, shard=options.shards // 3)
        for shards, plan in ((0, plain), (2, sharded)):
            play(algo, shards, plan, options.steps, rng, tally)
            print(algo, shards, dict(tally.kills), tally.wrong, flush=True)
    record = {
        "options": vars(options),
        "kills": dict(tally.kills),
        "runs": tally.runs,
        "steps_read": tally.items,
        "said": dict(tally.said),
        "wrong": tally.wrong,
        "slowest_end_of_actors_s": round(tally.slowest_end_s, 2),
        "driver_growth_mib": [round(each, 1) for each in tally.growth_mib],
        "seconds": round(time.monotonic() - began),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
