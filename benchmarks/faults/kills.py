"""SIGKILL at random moments, over every row: resumed until it ends, a run has the same bytes as one that never stopped."""

from __future__ import annotations

import functools
import random
import shutil
from pathlib import Path

from benchmarks.faults.children import Child, command
from benchmarks.faults.runs import TIMEOUT, run_directory, tiny, trained, write_config
from benchmarks.faults.tally import Case, Played
from tests.resume_harness import differences

TOTAL = 480
ROWS_SHORT = ("dqn", "ppo")


def cases(scale: str, seed: int) -> list[Case]:
    from rl_training.experiment.registry import algorithm_names

    rows, kills = (ROWS_SHORT, 2) if scale == "short" else (algorithm_names(), 6 if scale == "modest" else 19)
    grid = [(algo, num_envs) for algo in rows for num_envs in (1, 4)]
    return [
        Case(f"kills {algo} x{num_envs}", functools.partial(_play, algo, num_envs, kills, f"{seed}{algo}{num_envs}"))
        for algo, num_envs in grid
    ]


def _play(algo: str, num_envs: int, kills: int, seed: str, folder: Path, played: Played) -> None:
    rng = random.Random(seed)
    config = tiny(algo, num_envs=num_envs, total=TOTAL)
    reference = trained(config, folder / "reference")
    for attempt in range(10 * kills):  # each a run killed until it is done; a run that was done too soon brings no kill
        if played.rounds >= kills:
            break
        _killed_run(config, folder / f"killed-{attempt}", reference, kills - played.rounds, rng, played)
        shutil.rmtree(folder / f"killed-{attempt}")


def _killed_run(config: dict[str, object], folder: Path, reference: Path, kills: int, rng: random.Random, played: Played) -> None:
    arguments: tuple[str | Path, ...] = ("train", "--config", write_config(config, folder), "--quiet")
    fell = 0
    while True:
        child = Child(command(*arguments), cwd=folder)
        # Half of the moments early, where a resumed run reads and cuts, the others anywhere in the rest.
        moment = rng.uniform(0.0, 0.15) if rng.random() < 0.5 else rng.uniform(0.0, 1.0)
        if fell < kills and child.alive(moment):
            child.kill()
            fell += 1
        ended = child.wait(TIMEOUT)
        if ended.code == 137:
            run = run_directory(folder)
            if run is not None:  # a run killed before its config was written leaves nothing to resume
                arguments = ("resume", "--checkpoint", run, "--quiet")
            continue
        if ended.code is None:
            kind, text = "hang", "resumed"
        elif ended.code != 0:
            kind, text = ("traceback" if ended.traceback else "wrong exit code"), f"resume ended with {ended.code}: {ended.last_line}"
        else:
            run = run_directory(folder)
            found = ["no run"] if run is None else differences(reference, run, TOTAL)
            kind, text = ("differing bytes", ", ".join(found)) if found else (None, "")
        for _ in range(fell - 1):
            played.add()
        if fell:
            played.add(kind, f"after {fell} kills: {text}")
        return
