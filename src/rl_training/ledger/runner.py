"""Runs what a suite plans, in processes side by side, and writes a record as each run ends.

A run whose record is there is done: an interrupted suite goes on where it stopped, loses no finished run and repeats none. Two suites that
work on one folder share its runs: each is claimed before it starts, and one that is made elsewhere is waited for.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from rl_training.errors import Interrupted, UserError, warning_text
from rl_training.experiment.files import failing_as_run_error
from rl_training.ledger.machine import machine
from rl_training.ledger.records import Claim, Record, differences, read_record, write_record
from rl_training.ledger.suites import Plan

if TYPE_CHECKING:
    from rl_training.ledger.display import Display

FRESH = 1_000_003  # added to the seed: episodes that no evaluation of the run has played


@dataclass(frozen=True)
class State:
    """Where a suite stands: which runs have records, which of those were made by another config, which runs are missing."""

    done: tuple[Record, ...]
    stale: dict[str, tuple[str, ...]]  # name → the keys that differ; these are among `done`
    missing: tuple[Plan, ...]


def look(plans: Iterable[Plan], results: Path) -> State:
    if results.exists() and not results.is_dir():
        raise UserError(f"{results}: is no folder of records")
    done, missing, stale = [], [], {}
    for plan in plans:
        path = results / f"{plan.name}.json"
        if not path.exists():
            missing.append(plan)
            continue
        record = read_record(path)
        done.append(record)
        if differing := differences(record, plan):
            stale[plan.name] = tuple(sorted(differing))
    return State(tuple(done), stale, tuple(missing))


def run_plan(plan: Plan, folder: Path, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Trains, evaluates both policies on fresh episodes and returns the record. The run's directory is made in `folder`."""
    from rl_training.ledger.training import TrainingReturns
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.workflows import evaluate_checkpoint, train

    class Tell(Callback):
        def on_log(self, run: Any, record: Any) -> None:
            if progress is not None:
                progress(run.clock.env_steps)

    config = plan.config.replace(output_dir=str(folder))
    returns = TrainingReturns()
    result = train(config, callbacks=[Tell(), returns])
    checkpoints, fresh = result.run_dir / "checkpoints", config.seed + FRESH
    final = evaluate_checkpoint(checkpoints / "latest", num_episodes=plan.episodes, seed=fresh)
    is_last = result.metrics["best_step"] == result.metrics["global_step"]  # the same policy: not played twice
    best = final if is_last else evaluate_checkpoint(checkpoints / "best", num_episodes=plan.episodes, seed=fresh)
    lines = (result.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    measured = [json.loads(line) for line in lines]
    metadata = json.loads((result.run_dir / "metadata.json").read_text(encoding="utf-8"))
    return {
        "name": plan.name,
        "suite": plan.suite,
        "task": plan.task,
        "algorithm": config.algo,
        "label": plan.label,
        "config_file": plan.config_file,
        "config": {**config.to_dict(), "output_dir": "runs"},  # where it ran is nobody's business
        "seed": config.seed,
        "best": best,
        "final": final,
        "best_step": result.metrics["best_step"],
        "num_updates": result.metrics["num_updates"],
        "wall_time_s": round(result.metrics["wall_time_s"], 1),
        "curve": [[record["step"], record["eval/mean_reward"]] for record in measured if "eval/mean_reward" in record],
        "training": returns.rows(),
        "git": metadata.get("git"),
        "versions": metadata.get("versions"),
        "machine": machine(threads=1),
    }


@dataclass
class _Worker:
    """A run in a process of its own, and the end of the pipe it tells through."""

    plan: Plan
    process: SpawnProcess
    pipe: Connection
    folder: Path
    claim: Claim
    failure: str | None = None
    record: dict[str, Any] | None = None


@dataclass
class Outcome:
    """The records there are now, and what became of the runs that failed."""

    records: list[Record] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


Work: TypeAlias = Callable[[Plan, Path, Callable[[int], None]], dict[str, Any]]
"""A plan, a folder of its own, and whom to tell how many steps are done → the record."""


@dataclass(frozen=True)
class AfterImports:
    """`work`, in a process that first imports what its starter was told to (`--import`): rows and environments are registered there."""

    modules: tuple[str, ...]
    work: Work = run_plan

    def __call__(self, plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
        for module in self.modules:
            import_module(module)
        return self.work(plan, folder, progress)


def run_plans(plans: Sequence[Plan], results: Path, *, jobs: int, display: Display, work: Work = run_plan) -> Outcome:
    """Runs all of `plans`, at most `jobs` at a time. One that fails does not keep the others from running."""
    if jobs < 1:
        raise UserError(f"the number of jobs must be at least 1, got {jobs}")
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{results}: no results can be written there ({error.strerror or error})") from None
    waiting, elsewhere, running, outcome = list(reversed(plans)), list[Plan](), list[_Worker](), Outcome()
    scratch = Path(tempfile.mkdtemp(prefix="ledger-"))
    asked_to_stop: list[int] = []

    def on_signal(signum: int, frame: FrameType | None) -> None:
        asked_to_stop.append(signum)

    handlers = {signum: signal.signal(signum, on_signal) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        with display:
            while waiting or running:
                while waiting and len(running) < jobs:
                    plan = waiting.pop()
                    claim = Claim.of(results, plan.name)
                    if claim is None:
                        elsewhere.append(plan)
                    elif (record := _made_meanwhile(plan, results)) is not None:
                        claim.release()
                        outcome.records.append(record)
                        display.finished(plan, record, elsewhere=True)
                    else:
                        running.append(_start(plan, scratch, work, claim))
                        display.started(plan)
                waiting[:0], elsewhere = reversed(elsewhere), []  # asked for again after the others
                # A signal does not end this wait (PEP 475), so it looks up twice a second.
                if not running and waiting:
                    time.sleep(0.5)
                for pipe in wait([worker.pipe for worker in running], timeout=0.5) if running else ():
                    worker = next(each for each in running if each.pipe is pipe)
                    if _listen(worker, display):
                        running.remove(worker)
                        _finish(worker, results, outcome, display)
                if asked_to_stop:
                    counts = f"runs stopped: {len(running)}; finished and kept: {len(outcome.records)}"
                    raise Interrupted(f"{counts}; the same command goes on with the rest", signum=asked_to_stop[0])
    finally:
        for worker in running:
            worker.process.kill()
            worker.process.join()
            worker.claim.release()
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        shutil.rmtree(scratch, ignore_errors=True)
    return outcome


def _made_meanwhile(plan: Plan, results: Path) -> Record | None:
    """The record of this very plan, where another suite has made it since this one looked."""
    path = results / f"{plan.name}.json"
    if not path.exists():
        return None
    record = read_record(path)
    return None if differences(record, plan) else record


def _start(plan: Plan, scratch: Path, work: Work, claim: Claim) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    folder = scratch / plan.name
    process = context.Process(target=_work, args=(work, plan, folder, theirs))
    with _interrupts_held_back():
        process.start()
    theirs.close()  # so that the pipe ends when the process does
    return _Worker(plan, process, ours, folder, claim)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process that starts inside imports the package deaf to Ctrl-C, which would end there in a traceback. Ours comes afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    with _silent_tracker():
        resource_tracker.ensure_running()  # else the first start does it, and some versions of Python unblock SIGINT after that
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _silent_tracker() -> Iterator[None]:
    """The process that clears away what a killed worker leaves (a compiler's semaphores) would warn of it when all is over."""
    before = list(sys.warnoptions)
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")
    try:
        yield
    finally:
        sys.warnoptions[:] = before


def _work(work: Work, plan: Plan, folder: Path, pipe: Connection) -> None:
    """In the worker: whatever happens is told, and the exit code says nothing more."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches only the suite, which then stops its workers
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # forgets one that came before
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def warned(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
    ) -> None:
        with suppress(BrokenPipeError):
            pipe.send(("warned", warning_text(message)))

    warnings.showwarning = warned
    try:
        pipe.send(("record", work(plan, folder, lambda step: pipe.send(("step", step)))))
    except BrokenPipeError:
        pass  # the suite is gone
    except Exception as error:  # the suite has to hear of every failure, whatever it is
        with suppress(BrokenPipeError):
            pipe.send(("failed", f"{type(error).__name__}: {' '.join(str(error).split())}"))


def _listen(worker: _Worker, display: Display) -> bool:
    """Takes one message; whether the worker is done."""
    try:
        kind, content = worker.pipe.recv()
    except EOFError:
        worker.process.join()
        if worker.record is None and worker.failure is None:
            worker.failure = f"its process ended with exit code {worker.process.exitcode}"
        return True
    if kind == "step":
        display.stepped(worker.plan, content)
    elif kind == "warned":
        display.warned(worker.plan, content)
    elif kind == "record":
        worker.record = content
    else:
        worker.failure = content
    return False


def _finish(worker: _Worker, results: Path, outcome: Outcome, display: Display) -> None:
    worker.pipe.close()
    shutil.rmtree(worker.folder, ignore_errors=True)
    if worker.record is None:
        worker.claim.release()
        outcome.failures[worker.plan.name] = str(worker.failure)
        display.failed(worker.plan, str(worker.failure))
        return
    try:
        with failing_as_run_error(results / f"{worker.plan.name}.json"):
            write_record(results, worker.record)
    finally:
        worker.claim.release()
    outcome.records.append(Record.from_json(worker.record, source=worker.plan.name))
    display.finished(worker.plan, outcome.records[-1])
