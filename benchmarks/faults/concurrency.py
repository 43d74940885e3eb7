"""Several processes on one folder: three resume one run, readers look while a run rotates, two ledgers write one folder of records."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.children import Child, Work, command
from benchmarks.faults.runs import TIMEOUT, broken, run_directory, tiny, trained, verdict, write_config
from benchmarks.faults.tally import Case, Played, batches
from tests.resume_harness import differences

ROUNDS = {"short": 6, "modest": 150, "full": 1_020}
READS = {"short": 20, "modest": 200, "full": 900}
LEDGERS = {"short": 0, "modest": 1, "full": 6}
PROCESSES = 3
STEPS, END = 60, 120


def cases(scale: str, seed: int) -> list[Case]:
    size = 3 if scale == "short" else 60
    return [
        *(Case(f"resumes {batch.start}", functools.partial(_resumes, batch, seed)) for batch in batches(ROUNDS[scale], size)),
        *(
            Case(f"readers {batch.start}", functools.partial(_readers, batch))
            for batch in batches(READS[scale], max(10, READS[scale] // 3))
        ),
        *(Case(f"ledgers {number}", functools.partial(_ledgers, number)) for number in range(LEDGERS[scale])),
    ]


# Three resumes


def _resumes(numbers: range, seed: int, folder: Path, played: Played) -> None:
    config = tiny("dqn", total=END, eval_interval=60, checkpoint_interval=20)
    reference = trained(config, folder / "reference")
    start = folder / "start"
    trained({**config, "total_timesteps": STEPS, "schedule_timesteps": END}, start)
    for number in numbers:
        place = folder / "round"
        shutil.copytree(start, place, symlinks=True)
        wrong = _race(place, reference, random.Random(f"{seed} {number}"))
        played.add(*((None, "") if wrong is None else (wrong[0], f"round {number}: {wrong[1]}")))
        shutil.rmtree(place)


def _race(place: Path, reference: Path, rng: random.Random) -> tuple[str, str] | None:
    run_dir = run_directory(place)
    assert run_dir is not None
    log, go = place / "trainers", time.monotonic() + 0.05
    children = [Child(_resume(run_dir, log, go + rng.uniform(0.0, 0.03)), cwd=place) for _ in range(PROCESSES)]
    ends = [child.wait(TIMEOUT) for child in children]
    for ended in ends:
        if (wrong := verdict(ended, (0, 2))) is not None:
            return wrong
    trainers = set(log.read_text().split()) if log.exists() else set()
    if len(trainers) > 1:
        return "two winners", f"{len(trainers)} processes trained, exit codes {[ended.code for ended in ends]}"
    if not trainers:
        return "wrong exit code", f"nobody trained: {[ended.last_line for ended in ends]}"
    if (reason := broken(run_dir, replay=True)) is not None:
        return "lost", reason
    found = differences(reference, run_dir, END)
    return ("differing bytes", ", ".join(found)) if found else None


def _resume(run_dir: Path, log: Path, at: float) -> Work:
    def work() -> None:
        from rl_training.runtime import workflows
        from rl_training.runtime.callbacks import Callback

        class Trains(Callback):
            """Who takes a step is a winner. One that comes when all is done resumes a finished run: it takes none."""

            def on_step(self, run: Any, step: Any) -> None:
                if not told:
                    told.append(True)
                    with log.open("a") as file:
                        file.write(f"{os.getpid()}\n")

        told: list[bool] = []
        workflows.resume_training = functools.partial(workflows.resume_training, callbacks=[Trains()])  # what the command calls
        time.sleep(max(0.0, at - time.monotonic()))
        command("resume", "--checkpoint", run_dir, "--total-timesteps", str(END), "--quiet")()

    return work


# Readers


def _readers(numbers: range, folder: Path, played: Played) -> None:
    """Whoever opens a run by its path while it saves and rotates gets a whole checkpoint."""
    from rl_training.errors import UserError
    from rl_training.runtime.workflows import load_policy

    config = tiny("dqn", total=1_000_000, eval_interval=0, checkpoint_interval=40, log_interval=1_000, keep_checkpoints=1)
    writer = Child(command("train", "--config", write_config(config, folder), "--quiet"), cwd=folder)
    while ((run_dir := run_directory(folder)) is None or not list(run_dir.glob("checkpoints/latest"))) and writer.alive(0.01):
        pass
    assert run_dir is not None
    for _ in numbers:
        if not writer.alive():
            break
        try:
            load_policy(run_dir)
        except UserError as error:
            played.add("torn", f"a reader: {error}")
        else:
            played.add()
    if writer.alive():
        writer.kill()
    else:
        played.add("wrong exit code", f"the writer ended with {writer.wait(1.0).code}: {writer.wait(1.0).last_line}")


# Ledgers


def _ledgers(number: int, folder: Path, played: Played) -> None:
    """Two ledgers on one folder: every record is whole and nothing is left half written; no run is made twice."""
    settings = {"hidden_sizes": [8], "batch_size": 8, "learning_starts": 16}
    base = {"env_id": "CartPole-v1", "eval_interval": 0, "checkpoint_interval": 0, "threads": 1, "compile": False, "algo_kwargs": settings}
    task = {"name": "CartPole-v1", "total_timesteps": 60, "base": base, "runs": [{"algo": "dqn"}]}
    suite = {"description": "two at once", "seeds": [1, 2, 3, 4], "episodes": 1, "tasks": [task]}
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")
    results = folder / "records"
    arguments = ("ledger", folder / "suite.yaml", "--results", results, "--jobs", "1")
    children = [Child(command(*arguments), cwd=folder) for _ in range(2)]
    ends = [child.wait(240.0) for child in children]
    lines = [line for ended in ends for line in ended.err.splitlines() if line.startswith("[")]  # one for each run that ended
    made = sum(not line.endswith("made elsewhere") for line in lines)
    for ended in ends:
        if (wrong := verdict(ended, (0, 2))) is not None:
            played.add(*wrong)
            return
    try:
        records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    except ValueError as error:
        played.add("torn", f"a record: {error}")
        return
    litter = sorted(path.name for path in results.iterdir() if path.suffix != ".json" and not path.name.endswith(".lock"))
    if len(records) != 4:
        played.add("lost", f"{len(records)} of 4 records")
    elif litter:
        played.add("torn", f"{', '.join(litter)} is left")
    else:
        played.add(*((None, "") if made <= 4 else ("two winners", f"{made} runs made, 4 planned")))
