"""Faulty environments, in this process and in workers: exit code 1 or 2, one line that names the environment, checkpoints kept."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import Any

from benchmarks.faults.children import Ended, command, run
from benchmarks.faults.runs import broken, listed, run_directory, tiny, verdict, write_config
from benchmarks.faults.tally import Case, Played, batches

PATIENCE = 45.0
AT = 90  # a step of the environment, after the first checkpoint
MEMORY = 4 << 30


def cases(scale: str, seed: int) -> list[Case]:
    from benchmarks.faults.faulty_envs import FAULTS

    rounds = [
        (name, vectorization)
        for name, fault in FAULTS.items()
        for vectorization in (("async",) if fault.only_async else ("auto", "sync", "async"))
    ]
    if scale == "short":
        rounds = [each for index, each in enumerate(rounds) if index % 16 == seed % 16]
    size = 6 if scale == "short" else 15
    return [
        Case(f"environments {batch.start}", functools.partial(_play, [rounds[i] for i in batch])) for batch in batches(len(rounds), size)
    ]


def _play(rounds: list[tuple[str, str]], folder: Path, played: Played) -> None:
    from benchmarks.faults.faulty_envs import ENV_ID, FAULTS

    repository = Path(__file__).resolve().parents[2]
    for number, (name, vectorization) in enumerate(rounds):
        fault, place = FAULTS[name], folder / str(number)
        kwargs = {"fault": name, "at": AT // 2 if vectorization != "auto" else AT}
        num_envs = 1 if vectorization == "auto" else 2
        config: dict[str, Any] = tiny(
            "dqn", num_envs=num_envs, env_id=ENV_ID, env_kwargs=kwargs, vectorization=vectorization, eval_interval=0, checkpoint_interval=40
        )
        path = write_config(config, place)

        def work(path: Path = path) -> None:
            from benchmarks.faults import faulty_envs

            faulty_envs.MAIN_PID = os.getpid()
            command("train", "--config", path, "--quiet")()

        ended = run(work, timeout=PATIENCE, cwd=repository, memory=MEMORY)
        wrong = verdict(ended, fault.codes) or _judge(ended, place, fault)
        played.add(*((None, "") if wrong is None else (wrong[0], f"{name}, {vectorization}: {wrong[1]}")))
        shutil.rmtree(place)


def _judge(ended: Ended, place: Path, fault: Any) -> tuple[str, str] | None:
    run_dir = run_directory(place)
    if ended.code == 2 and run_dir is not None:
        return "write before refusal", f"{run_dir.name} ({ended.last_line})"
    named = any(word in ended.last_line for word in ("nvironment", "Faulty", "observation space", "action space"))
    if ended.code and not named:
        return "not one line", f"it does not name the environment: {ended.last_line}"
    if not fault.keeps:
        return None
    if run_dir is None or not listed(run_dir):
        return "no checkpoint", ended.last_line
    reason = broken(run_dir, replay=True)
    if reason is not None:
        return "torn", reason
    if ended.code == 1 and "checkpoint" not in ended.last_line:
        return "not one line", f"it does not name the checkpoint: {ended.last_line}"
    return None
