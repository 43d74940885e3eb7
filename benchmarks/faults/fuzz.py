"""Mutated files before `eval`, `resume`, `predict`, `report` and `load_config`: a right answer, or a line and nothing written."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.children import Work, command, run
from benchmarks.faults.mutations import Mutate, in_place_of, mutate_json, mutate_lines, mutate_tensors, mutate_text, mutate_yaml
from benchmarks.faults.planted import BOMBS, explode, links, names
from benchmarks.faults.runs import changed, snapshot, tiny, trained, verdict
from benchmarks.faults.tally import Case, Played, batches

ROUNDS = {"short": 60, "modest": 1500, "full": 10_500}
PATIENCE = 30.0
MEMORY = 1 << 30  # more than this for a run of a few kilobytes is a bomb that went off
STEPS, END = 60, 80


@dataclass(frozen=True)
class Target:
    """A file (`{step}` is the checkpoint) and who reads it. `digested`: no byte of it may change unnoticed by those who read it."""

    file: str
    mutate: Mutate
    commands: Sequence[str]
    weight: int
    digested: Sequence[str] = ()


TARGETS = (
    Target("run/checkpoints/{step}/manifest.json", mutate_json, ("eval", "resume", "predict"), 30),
    Target("run/checkpoints/{step}/model.safetensors", mutate_tensors, ("eval", "resume", "predict"), 10, ("eval", "resume", "predict")),
    Target("run/checkpoints/{step}/training.safetensors", mutate_tensors, ("resume",), 7, ("resume",)),
    Target("run/checkpoints/{step}/replay.safetensors", mutate_tensors, ("resume",), 7, ("resume",)),
    Target("run/config.yaml", mutate_yaml, ("resume", "report", "load_config"), 16),
    Target("run/metadata.json", mutate_json, ("resume", "report"), 8),
    Target("run/metrics.jsonl", mutate_lines, ("resume", "report"), 8),
    Target("record.json", mutate_json, ("report",), 8),
    Target("statistics.json", mutate_json, ("report",), 2),
    Target("observations.jsonl", mutate_text, ("predict",), 4),
)
SPECIAL_SHARE = 0.06  # something else than a file in its place
ROWS = ("dqn", "r2d2", "ppo")


def cases(scale: str, seed: int) -> list[Case]:
    rows = ROWS[:1] if scale == "short" else ROWS
    rounds, size = ROUNDS[scale], 30 if scale == "short" else 250
    thinned = {"short": 9, "modest": 3, "full": 1}[scale]
    bombs = BOMBS[seed % thinned :: thinned]
    named = [
        *((f"fuzz {play.__name__}", functools.partial(_play_planted, play, 4 if scale == "short" else 1)) for play in (links, names)),
        *((f"fuzz bombs {batch.start}", functools.partial(explode, bombs[batch.start : batch.stop])) for batch in batches(len(bombs), 12)),
    ]
    for index, numbers in enumerate(batches(rounds, size)):
        algo = rows[index % len(rows)]
        named.append((f"fuzz {algo} {numbers.start}", functools.partial(_play, algo, numbers, seed)))
    return [Case(name, play, 1800.0) for name, play in named]


def _play_planted(play: Callable[[int, Path, Path, Played], None], every: int, folder: Path, played: Played) -> None:
    _prepare("dqn", folder / "start")
    play(every, folder / "start", folder, played)


def _play(algo: str, numbers: range, seed: int, folder: Path, played: Played) -> None:
    start, place = folder / "start", folder / "round"
    _prepare(algo, start)
    for number in numbers:
        rng = random.Random(f"{seed} {algo} {number}")
        target = rng.choices(TARGETS, [each.weight for each in TARGETS])[0]
        verb = rng.choice(target.commands)
        shutil.copytree(start, place, symlinks=True)
        path = place / target.file.format(step=f"step_{STEPS}")
        original = path.read_bytes()
        special = rng.random() < SPECIAL_SHARE
        if special:
            name, data = in_place_of(path, rng), None
        else:
            name, data = target.mutate(original, rng)
            path.write_bytes(data)
        wrong = _judge(verb, place, target, harmless=data == original or special)
        played.add(*((None, "") if wrong is None else (wrong[0], f"{verb}, {Path(target.file).name}: {name} ({number}): {wrong[1]}")))
        shutil.rmtree(place)


def _judge(verb: str, place: Path, target: Target, *, harmless: bool) -> tuple[str, str] | None:
    before = snapshot(place)
    ended = run(_work(verb, place), timeout=PATIENCE, cwd=place, memory=MEMORY)
    # A mutated setting may well fail while running (exit code 1), as a learning rate of 1e39 does.
    wrong = verdict(ended, (0, 1, 2) if verb in ("resume", "eval") else (0, 2))
    if wrong is not None:
        return wrong
    written = [name for name in changed(before, snapshot(place)) if name != "report.html"]
    if written and (ended.code == 2 or verb != "resume"):
        return "write before refusal", f"{', '.join(written[:4])} ({ended.last_line})"
    if ended.code == 0 and verb in target.digested and not harmless:
        return "let in", "a changed byte was not noticed"
    if verb == "predict" and ended.code == 0 and not _is_json(ended.out):
        return "let in", f"its answer is no JSON: {ended.out[:80]}"
    return None


def _is_json(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        for line in text.splitlines():
            json.loads(line, parse_constant=refuse)
    except ValueError:
        return False
    return True


def _work(verb: str, place: Path) -> Work:
    if verb == "eval":
        return command("eval", "--checkpoint", place / "run", "--episodes", "1")
    if verb == "resume":
        return command("resume", "--checkpoint", place / "run", "--total-timesteps", str(END), "--quiet")
    if verb == "predict":
        return command("predict", "--checkpoint", place / "run", "--input", place / "observations.jsonl")
    if verb == "report":
        return command("report", place, "-o", place / "report.html")
    return command("configs", "show", place / "run" / "config.yaml")


def _prepare(algo: str, start: Path) -> None:
    """A run at step 60 of 80, a ledger's record of it, and observations to ask it about."""
    config = tiny(algo, total=STEPS, schedule_timesteps=END, eval_interval=30, checkpoint_interval=0, log_interval=10)
    run_dir = trained(config, start)
    run_dir.rename(start / "run")
    (start / "config.yaml").unlink()
    figures = {"eval_return_mean": 20.0, "eval_return_std": 1.0, "eval_episodes": 3}
    record = {
        "name": f"{algo}__seed1",
        "suite": "classic",
        "task": "CartPole-v1",
        "algorithm": algo,
        "label": "",
        "config": {**config, "output_dir": "runs"},
        "seed": 1,
        "best": figures,
        "final": figures,
        "best_step": 60,
        "num_updates": 10,
        "wall_time_s": 1.5,
        "curve": [[30, 12.0], [60, 20.0]],
        "git": {"commit": "0" * 40, "dirty": False},
        "versions": {"python": "3.11"},
        "machine": {"cpu": "some", "cores": 2},
    }
    (start / "record.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    (start / "statistics.json").write_text(json.dumps({"iqm [[1.0]]": [1.0, 0.5, 1.5]}), encoding="utf-8")
    (start / "observations.jsonl").write_text('[0.0, 0.1, 0.0, -0.1]\n{"obs": [1, 2, 3, 4], "episode_start": true}\n' * 2, encoding="utf-8")
