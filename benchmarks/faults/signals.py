"""SIGINT and SIGTERM, once, twice and six times, to the process and to its group, in every phase of a run.

Once: the exit code is 128 + the signal, a checkpoint is saved and named. Again: the run is left at once. Either way no process stays
behind, what had been saved is whole, and the run goes on from it.
"""

from __future__ import annotations

import functools
import os
import select
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults import phased_env
from benchmarks.faults.children import Child, Ended, command, run
from benchmarks.faults.phased_env import ENV_ID, Moment
from benchmarks.faults.runs import TIMEOUT, broken, listed, run_directory, tiny, trained, verdict, write_config
from benchmarks.faults.tally import Case, Played, batches

TOTAL = 160
PATIENCE = 40.0
COMPILING = (0.0, 2.0, 6.0)  # seconds into a compilation, which takes a quarter of a minute
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Phase:
    """A moment of a run. `begun`: the run's loop has begun, so one signal saves; `ending`: it is so near its end that it may complete."""

    name: str
    phase: str
    number: int = 1
    begun: bool = True
    ending: bool = False
    resumes: bool = False


PHASES = (
    Phase("construction", "construct", begun=False),
    Phase("first reset", "reset", begun=False),
    Phase("first step", "step"),
    Phase("training", "step", 50),
    Phase("update", "update", 5),
    Phase("evaluation", "evaluate", 3),
    Phase("checkpoint written", "checkpoint", 3),
    Phase("checkpoint renamed", "rename", 1),
    Phase("checkpoint linked", "link", 1),
    Phase("last evaluation", "last evaluation", ending=True),
    Phase("final save", "final save", ending=True),
    Phase("resume replays", "replay", begun=False, resumes=True),
    Phase("resume trains", "step", 5, resumes=True),
    Phase("hung environment", "hang", 30),
    Phase("compile", "compile"),
)


@dataclass(frozen=True)
class Sequence:
    signals: tuple[int, ...]
    group: bool

    def __str__(self) -> str:
        names = " ".join(signal.Signals(each).name for each in self.signals)
        return f"{names} to the {'group' if self.group else 'process'}"


SEQUENCES = tuple(
    Sequence(signals, group)
    for group in (False, True)
    for signals in (
        (signal.SIGINT,),
        (signal.SIGTERM,),
        (signal.SIGINT,) * 2,
        (signal.SIGTERM,) * 2,
        (signal.SIGINT,) * 6,
        (signal.SIGTERM,) * 6,
        (signal.SIGINT, signal.SIGTERM),
    )
)


def cases(scale: str, seed: int) -> list[Case]:
    rounds = [
        (phase, sequence, vectorization)
        for phase in PHASES
        for sequence in SEQUENCES
        for vectorization in ("auto", "sync", "async")
        if _makes_sense(phase, sequence, vectorization)
    ]
    keep = {"short": 43, "modest": 4, "full": 1}[scale]
    rounds = [
        each for index, each in enumerate(rounds) if index % keep == seed % keep and not (scale == "short" and each[0].phase == "compile")
    ]
    return [
        Case(f"signals {batch.start}", functools.partial(_play, [rounds[i] for i in batch]), 1800.0) for batch in batches(len(rounds), 12)
    ]


def _makes_sense(phase: Phase, sequence: Sequence, vectorization: str) -> bool:
    if phase.phase == "hang":
        return len(sequence.signals) > 1  # a single one waits for the step
    if phase.phase == "compile":
        return vectorization == "auto" and len(sequence.signals) < 6  # half a minute each
    return True


def _play(rounds: list[tuple[Phase, Sequence, str]], folder: Path, played: Played) -> None:
    for number, (phase, sequence, vectorization) in enumerate(rounds):
        place = folder / str(number)
        wrong = _round(phase, sequence, vectorization, place)
        played.add(*((None, "") if wrong is None else (wrong[0], f"{phase.name}, {vectorization}, {sequence}: {wrong[1]}")))
        shutil.rmtree(place)


def _round(phase: Phase, sequence: Sequence, vectorization: str, place: Path) -> tuple[str, str] | None:
    config = tiny(
        "dqn",
        num_envs=1 if vectorization == "auto" else 2,
        total=TOTAL,
        env_id=ENV_ID,
        vectorization=vectorization,
        eval_interval=80,
        checkpoint_interval=30,
        compile=phase.phase == "compile",
    )
    arguments: tuple[str | Path, ...] = ("train", "--config", write_config(config, place), "--quiet")
    if phase.resumes:
        run_dir = trained({**config, "total_timesteps": 100, "schedule_timesteps": TOTAL}, place)
        arguments = ("resume", "--checkpoint", run_dir, "--total-timesteps", str(TOTAL), "--quiet")
    saved = _saved(place)
    ours, theirs = os.pipe()
    waits, sent = os.pipe()

    def work() -> None:
        os.close(sent)  # so that it ends when it is closed below
        _work(Moment(phase.phase, phase.number, theirs, waits), arguments, place)

    child = Child(work, cwd=REPOSITORY)
    os.close(theirs)
    os.close(waits)
    told = bool(select.select([ours], [], [], PATIENCE)[0]) and os.read(ours, 1) == b"."
    if told and phase.phase == "compile":
        time.sleep(COMPILING[SEQUENCES.index(sequence) % len(COMPILING)])
    for index, signum in enumerate(sequence.signals if told else ()):
        time.sleep(0.02 if index == 0 else 0.05)
        child.send(signum, group=sequence.group)
    os.close(sent)
    ended = child.wait(PATIENCE * (4 if phase.phase == "compile" else 1))
    os.close(ours)
    if not told:
        return "wrong exit code", f"the phase never came; the run ended with {ended.code}: {ended.last_line}"
    return _judge(phase, sequence, ended, place, saved)


def _saved(place: Path) -> int:
    run_dir = run_directory(place)
    return max(listed(run_dir), default=-1) if run_dir is not None else -1


def _judge(phase: Phase, sequence: Sequence, ended: Ended, place: Path, saved: int) -> tuple[str, str] | None:
    codes = {128 + sequence.signals[0]}
    if len(sequence.signals) > 1:
        codes |= {128 + sequence.signals[1], 130}
    if phase.ending:
        codes.add(0)
    wrong = verdict(ended, tuple(sorted(codes)))
    if wrong is not None and wrong[0] == "not one line" and not ended.lines and (len(sequence.signals) > 1 or not phase.begun):
        wrong = None  # who left at once, or before there was anything to say, may be silent
    if wrong is not None:
        return wrong
    if ended.orphans:
        return "orphans", f"{ended.orphans} processes left behind"
    run_dir = run_directory(place)
    due = phase.begun and len(sequence.signals) == 1
    if due and (run_dir is None or not listed(run_dir)):
        return "no checkpoint", ended.last_line
    if saved >= 0 and _saved(place) < saved:
        return "lost", f"step {saved} had been saved, {_saved(place)} is left"
    if run_dir is None:
        return None
    if listed(run_dir) and (reason := broken(run_dir)) is not None:
        return "torn", reason
    patience = TIMEOUT * (4 if phase.phase == "compile" else 1)  # it compiles again
    again = run(functools.partial(_resume, run_dir), timeout=patience, cwd=REPOSITORY)
    if (wrong := verdict(again, (0,))) is not None:
        return ("lost" if wrong[0] == "wrong exit code" else wrong[0]), f"resumed: {wrong[1]}"
    return None


def _resume(run_dir: Path) -> None:
    command("--import", "benchmarks.faults.phased_env", "resume", "--checkpoint", run_dir, "--total-timesteps", str(TOTAL), "--quiet")()


def _work(moment: Moment, arguments: tuple[str | Path, ...], place: Path) -> None:
    """The command, with something that tells when the phase has come."""
    phased_env.moment = moment
    os.environ["RL_TRAINING_CACHE"] = str(place / "cache")
    from rl_training.runtime import workflows
    from rl_training.runtime.callbacks import Callback

    class Tells(Callback):
        def on_update(self, run: Any, result: Any) -> None:
            moment.at("update")

        def on_status(self, run: Any, what: str, text: str) -> None:
            if what == "compilation":
                moment.at("compile")

        def on_step(self, run: Any, step: Any) -> None:
            last[0] = run.clock.env_steps >= TOTAL

    last = [False]

    def watched(calls: Any) -> Any:
        """What the command calls, with one callback more."""
        return lambda *given, callbacks=(), **options: calls(*given, callbacks=[*callbacks, Tells()], **options)

    workflows.train, workflows.resume_training = watched(workflows.train), watched(workflows.resume_training)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename") or not isinstance(given[0], str) or "/checkpoints/" not in given[0]:
            return
        if event == "open":
            if given[2] & os.O_WRONLY:
                moment.at("checkpoint")
                if f"step_{TOTAL}" in given[0]:
                    moment.at("final save")
        else:
            moment.at("link" if "link" in os.path.basename(given[0]) else "rename")

    sys.addaudithook(hook)
    if moment.phase == "last evaluation":
        original = phased_env.Phased.step

        def step(self: Any, action: Any) -> Any:
            if last[0]:
                moment.at("last evaluation")
            return original(self, action)

        phased_env.Phased.step = step  # type: ignore[method-assign]
    command("--import", "benchmarks.faults.phased_env", *arguments)()
