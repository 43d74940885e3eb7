"""Cases, how their rounds ended, and a few of them side by side."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.children import die_with_parent

KINDS = (
    "differing bytes",
    "torn",
    "lost",
    "traceback",
    "crash",
    "hang",
    "write before refusal",
    "let in",
    "wrong exit code",
    "not one line",
    "no checkpoint",
    "orphans",
    "two winners",
)
EXAMPLES = 12  # of a part, kept in the record; all of them are printed


class Played:
    """The rounds of one case: a round ends well or wrong, in one way."""

    def __init__(self) -> None:
        self.rounds = 0
        self.wrong: list[tuple[str, str]] = []

    def add(self, kind: str | None = None, text: str = "") -> None:
        """A round, and what was wrong with it, if anything was."""
        assert kind is None or kind in KINDS, kind
        self.rounds += 1
        if kind is not None:
            self.wrong.append((kind, text))


Play = Callable[[Path, Played], None]
"""Plays a case's rounds in an empty folder."""


@dataclass(frozen=True)
class Case:
    name: str
    play: Play
    timeout: float = 600.0


@dataclass
class Part:
    """What a part of the campaign came to."""

    rounds: int = 0
    cases: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, case: Case, rounds: int, wrong: Sequence[tuple[str, str]]) -> None:
        self.cases += 1
        self.rounds += rounds
        seen = {example.split(": ", 1)[0] for example in self.examples}
        for kind, text in wrong:
            self.wrong[kind] += 1
            if kind not in seen or len(self.examples) < EXAMPLES:  # at least one of every kind
                self.examples.append(f"{kind}: {case.name}: {text}"[:400])
                seen.add(kind)

    def record(self) -> dict[str, Any]:
        wrong = {kind: self.wrong[kind] for kind in KINDS if self.wrong[kind]}
        return {
            "rounds": self.rounds,
            "cases": self.cases,
            "wrong": wrong,
            "wrong_rounds": sum(wrong.values()),
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "examples": self.examples,
        }


def play_all(cases: Sequence[Case], workspace: Path, *, jobs: int, tell: Callable[[str], None]) -> Part:
    """Plays every case in a process of its own, `jobs` at a time. A case that fails or hangs is itself a wrong round."""
    part, began, used = Part(), time.monotonic(), _used()
    waiting, running = list(reversed(cases)), dict[int, _Running]()
    while waiting or running:
        while waiting and len(running) < jobs:
            started = _Running(waiting.pop(), workspace)
            running[started.pidfd] = started
        ready, _, _ = select.select(list(running), [], [], 1.0)
        late = [pidfd for pidfd, each in running.items() if time.monotonic() > each.deadline]
        for pidfd in {*ready, *late}:
            case, rounds, wrong = running.pop(pidfd).result()
            part.add(case, rounds, wrong)
            for kind, text in wrong:
                tell(f"  {kind}: {case.name}: {text}"[:400])
    part.seconds, part.cpu_seconds = time.monotonic() - began, _used() - used
    return part


def _used() -> float:
    """Seconds of work by this process and all it has waited for."""
    times = os.times()
    return sum(times[:4])


class _Running:
    """A case under way, in a process that hands its rounds over in a file."""

    def __init__(self, case: Case, workspace: Path) -> None:
        self.case, self.deadline = case, time.monotonic() + case.timeout
        self._folder = workspace / "".join(letter if letter.isalnum() else "-" for letter in case.name)
        self._folder.mkdir()
        self._result = workspace / f"{self._folder.name}.json"
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._play()
        self.pidfd = os.pidfd_open(self._pid)

    def _play(self) -> None:
        try:
            die_with_parent()
            os.setpgid(0, 0)
            played = Played()
            try:
                self.case.play(self._folder, played)
            except BaseException:  # the tool's own fault, or a state nobody thought of: it must show
                played.add("traceback", "in the campaign: " + " | ".join(traceback.format_exc().splitlines()[-6:]))
            self._result.write_text(json.dumps([played.rounds, played.wrong]), encoding="utf-8")
        finally:
            os._exit(0)

    def result(self) -> tuple[Case, int, list[tuple[str, str]]]:
        os.close(self.pidfd)
        if time.monotonic() > self.deadline and not self._result.exists():
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self._result.exists():
            return self.case, 1, [("hang", f"the case was not done in {self.case.timeout:.0f} s, or its process died")]
        rounds, wrong = json.loads(self._result.read_text(encoding="utf-8"))
        self._result.unlink()
        return self.case, rounds, [(kind, text.replace(str(self._folder), "...")) for kind, text in wrong]


def batches(total: int, size: int) -> Iterator[range]:
    """0..total in pieces."""
    for start in range(0, total, size):
        yield range(start, min(start + size, total))
