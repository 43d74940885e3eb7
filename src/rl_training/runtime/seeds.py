"""One run for each of several seeds, side by side in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

from rl_training.errors import UserError
from rl_training.experiment.files import read_json
from rl_training.resources import usable_cores

MAX_SEEDS = 1_000


class SeedRun(NamedTuple):
    """How the run of one seed ended: its checkpoint, or the line it left on stderr."""

    seed: int
    exit_code: int
    checkpoint: Path | None
    message: str


def parse_seeds(text: str) -> list[int]:
    """`1,2,3` and `1-5`, in that order, each once."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UserError(f"--seeds {text}: must be such as 1,2,3 or 1-5")
        if int(last or first) - int(first) >= MAX_SEEDS:
            raise UserError(f"--seeds {text}: more than {MAX_SEEDS} seeds")
        seeds += range(int(first), int(last or first) + 1)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text}: names a seed twice")
    return seeds


def train_side_by_side(
    commands: Mapping[int, Sequence[str]],
    *,
    jobs: int,
    started: Callable[[int], None],
    ended: Callable[[SeedRun], None],
    stepped: Callable[[int, Mapping[str, Any]], None] = lambda seed, progress: None,
) -> list[SeedRun]:
    """Runs `rl-training <command>` for each seed, `jobs` at a time, and tells of each start, how it gets on and its end; the runs in the
    order given.

    A command is a quiet `train`, which prints its checkpoint. A seed that fails does not stop the others. SIGINT and SIGTERM are passed on
    once to those under way, which save and leave, and no more are started.
    """
    waiting, running, done = list(commands), dict[int, _Process](), dict[int, SeedRun]()
    environment = {**os.environ}
    # Threads that wait for each other cost far more than they give: share the cores out, unless somebody has already.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // jobs)))
    with _passing_signals_on(running) as signalled, tempfile.TemporaryDirectory() as folder:
        while running or (waiting and not signalled):
            while waiting and len(running) < jobs and not signalled:
                seed = waiting.pop(0)
                progress = ["--progress-to", f"{folder}/{seed}.json"]
                command = [sys.executable, "-m", "rl_training", *commands[seed], *progress]
                running[seed] = _Process(command, environment, Path(folder) / str(seed))
                started(seed)
            time.sleep(0.05)
            for seed in running:
                with contextlib.suppress(OSError, ValueError):  # nothing yet
                    stepped(seed, read_json(Path(folder) / f"{seed}.json", limit=1 << 16))
            for seed in [each for each, process in running.items() if process.over]:
                done[seed] = running.pop(seed).outcome(seed)
                ended(done[seed])
    for seed in waiting:
        done[seed] = SeedRun(seed, 128 + signalled[0], None, "was not started")
    return [done[seed] for seed in commands]


def final_return(checkpoint: Path) -> float:
    """The last evaluation in a run's records: the one its last checkpoint was saved after."""
    records = (json.loads(line) for line in (checkpoint.parent.parent / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return float([record["eval/mean_reward"] for record in records if "eval/mean_reward" in record][-1])


class _Process:
    """A command whose output goes to files: nobody has to read along."""

    def __init__(self, command: list[str], environment: dict[str, str], files: Path) -> None:
        self._out, self._err = (_file(f"{files}.{name}") for name in ("out", "err"))
        # A session of its own: a terminal's Ctrl-C would otherwise reach it a second time, and twice means leave without saving.
        self._process = subprocess.Popen(command, stdout=self._out, stderr=self._err, env=environment, start_new_session=True)

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def send(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signum)

    def outcome(self, seed: int) -> SeedRun:
        code = self._process.wait()
        out, err = (_text(file) for file in (self._out, self._err))
        checkpoint = Path(out.splitlines()[-1]) if code == 0 else None
        return SeedRun(seed, code if code >= 0 else 128 - code, checkpoint, " ".join(err.splitlines()[-1:]))


def _file(path: str) -> IO[str]:
    return open(path, "w+", encoding="utf-8")


def _text(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read().strip()


@contextlib.contextmanager
def _passing_signals_on(running: Mapping[int, _Process]) -> Iterator[list[int]]:
    """The signals that have come; the first one was passed on to every process under way."""
    came: list[int] = []

    def pass_on(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        for process in running.values():
            process.send(signum)

    old = {signum: signal.signal(signum, pass_on) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)
