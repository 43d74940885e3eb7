"""What every benchmark shares: interleaved rounds, medians and ratios, and a JSON record that says what was measured where."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_training.ledger.machine import machine as ledger_machine

Contender = Callable[[], float]
"""One measurement: runs for a while and returns its rate (per second)."""

PEERS = ("stable-baselines3", "sb3-contrib", "tianshou", "cpprb")


COMPILED = "ours, compiled"
compile_seconds: dict[str, float] = {}
"""What each compilation of this run took: paid once, and no part of any rate."""


@dataclass(frozen=True)
class Result:
    """One piece of work, done by ours (in one or more ways: names that begin with "ours") and by peers.

    Rates are per second, in the order of the rounds.
    """

    case: str
    unit: str
    ours: str
    rates: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.rates[name])

    @property
    def best_peer(self) -> str | None:
        peers = [name for name in self.rates if not name.startswith("ours")]
        return max(peers, key=self.median) if peers else None

    @property
    def ratios(self) -> dict[str, float]:
        """Each of ours over the best peer: the median of the rounds' ratios, so that a slow minute counts for both or not at all."""
        return (
            {} if self.best_peer is None else {name: statistics.median(self.paired(name)) for name in self.rates if name.startswith("ours")}
        )

    def paired(self, name: str) -> list[float]:
        return [a / b for a, b in zip(self.rates[name], self.rates[str(self.best_peer)], strict=True)]

    def record(self) -> dict[str, Any]:
        medians = {name: self.median(name) for name in self.rates}
        return {**asdict(self), "medians": medians, "best_peer": self.best_peer, "ratio": self.ratios.get(self.ours), "ratios": self.ratios}

    def print(self) -> None:
        print(f"\n{self.case} ({self.unit})")
        for name, rates in self.rates.items():
            print(f"  {name:<34} {self.median(name):>12,.0f}   rounds {min(rates):,.0f} to {max(rates):,.0f}")
        for name, ratio in self.ratios.items():
            paired = self.paired(name)
            print(f"  {name} / {self.best_peer}: {ratio:.2f}x   rounds {min(paired):.2f} to {max(paired):.2f}", flush=True)


def compare(case: str, unit: str, contenders: Mapping[str, Contender], *, rounds: int, ours: str = "ours") -> Result:
    """Each contender once a round, the order turned by one each time: a slow minute of the machine falls on all of them."""
    names = list(contenders)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            rates[name].append(contenders[name]())
    result = Result(case, unit, ours, rates)
    result.print()
    return result


_clock: Callable[[], float] = time.perf_counter


def clock() -> float:
    """Seconds, of the wall or (`--clock cpu`) of this process's work."""
    return _clock()


def repeat_for(work: Callable[[int], object], seconds: float) -> Contender:
    """A contender that calls `work(n)` (n repetitions) with an n that takes about `seconds`, found once, after a warm-up."""
    n, took = 8, 0.0
    while took < seconds / 8:
        n *= 2
        start = clock()
        work(n)
        took = clock() - start
    n = max(1, round(n * seconds / took))

    def measure() -> float:
        start = clock()
        work(n)
        return n / (clock() - start)

    return measure


def compiled_fresh(learner: Any, batch: Any, case: str, unpack: Any = dict) -> None:
    """Compile a learner's step as a first run would, past the cache, and note what that took."""
    from rl_training.speed.ahead_of_time import compile_learner

    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("RL_TRAINING_CACHE")
        os.environ["RL_TRAINING_CACHE"] = folder
        try:
            compile_seconds[case] = compile_learner(learner, batch, unpack).seconds
        finally:
            del os.environ["RL_TRAINING_CACHE"]
            if before is not None:
                os.environ["RL_TRAINING_CACHE"] = before
    print(f"{case}: compiled in {compile_seconds[case]:.1f} s", flush=True)


def machine(threads: int) -> dict[str, Any]:
    """The ledger's description of this machine, with the peers' versions."""
    return {
        **ledger_machine(threads, also=PEERS),
        # the results themselves may be new
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")),
    }


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def arguments(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="measurements of each contender (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu counts this process's own work: steadier on a machine that others use"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave out what has to be compiled first, half a minute each")
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--json", type=Path, help="write the results here")
    return parser


def prepare(options: argparse.Namespace) -> None:
    """Threads and clock, as the options say."""
    import torch

    global _clock
    _clock = time.process_time if options.clock == "cpu" else time.perf_counter
    torch.set_num_threads(options.threads)


def save(path: Path | None, options: argparse.Namespace, results: Sequence[Result]) -> None:
    """The record of a run: where, with what options, every rate of every round."""
    if path is None:
        return
    chosen = {key: value for key, value in vars(options).items() if key != "json"}
    record: dict[str, Any] = {"machine": machine(options.threads), "options": chosen, "results": [result.record() for result in results]}
    if compile_seconds:
        record["compile_seconds"] = compile_seconds
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten to {path}")
