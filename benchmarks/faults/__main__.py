"""Plays the campaign and writes its counts; see the package."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.faults.children import warm
from benchmarks.faults.runs import tiny, write_config
from benchmarks.faults.tally import play_all

PARTS = ("kills", "torn", "fuzz", "signals", "environments", "disk", "concurrency")
SCALES = ("short", "modest", "full")
RECORD = Path(__file__).resolve().parent.parent / "results" / "faults.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=importlib.import_module("benchmarks.faults").__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to play (default: all)")
    parser.add_argument("--scale", choices=SCALES, default="full", help="how many rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="cases side by side (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=RECORD, metavar="FILE", help="the record to write (default: %(default)s)")
    parser.add_argument("--label", default="after", metavar="NAME", help="under which name in the record (default: %(default)s)")
    parser.add_argument("--redo", action="store_true", help="play parts again that the record has from this commit, scale and seed")
    parser.add_argument("--table", action="store_true", help="play nothing: print what the record has, as Markdown")
    options = parser.parse_args()
    if options.table:
        print(markdown(json.loads(options.json.read_text(encoding="utf-8"))))
        return 0
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded, which would start threads
    began = time.monotonic()
    record = _Record(options.json, options.label, {"commit": _commit(), "scale": options.scale, "seed": options.seed})
    todo = [name for name in options.only if options.redo or name not in record.parts]
    if todo:
        shared_memory = Path("/dev/shm")  # syncing costs nothing there
        with tempfile.TemporaryDirectory(prefix="faults-", dir=shared_memory if shared_memory.is_dir() else None) as place:
            _warm(options.scale, todo, Path(place))
            for name in todo:
                print(f"{name} ...", flush=True)
                module = importlib.import_module(f"benchmarks.faults.{name}")
                workspace = Path(place) / name
                workspace.mkdir()
                part = play_all(module.cases(options.scale, options.seed), workspace, jobs=options.jobs, tell=print)
                record.save(name, part.record())
    record.print(options.only)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if any(record.parts[name]["wrong"] for name in options.only) else 0


def _warm(scale: str, parts: list[str], place: Path) -> None:
    """Loads what the rounds of these parts load: children are forked from a process that has it."""
    from rl_training.experiment.registry import algorithm_names

    rows: tuple[str, ...] = ("dqn",)
    if scale != "short" and {"torn", "fuzz"} & set(parts):
        rows = ("dqn", "r2d2", "ppo")
    if scale != "short" and "kills" in parts:
        rows = algorithm_names()
    warm([write_config(tiny(algo, total=100), place / "warm" / algo) for algo in rows])


def _commit() -> str | None:
    """The commit of the package that is tried, which PYTHONPATH may have taken from another tree, with + where its files differ."""
    import rl_training

    def ask(*arguments: str) -> str:
        folder = Path(rl_training.__file__).parent
        return subprocess.run(("git", *arguments), cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return ask("rev-parse", "HEAD") + ("+" if ask("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def markdown(record: dict[str, Any]) -> str:
    """Every entry of the record side by side: of how many rounds how many ended wrong, and how."""
    labels = list(record)
    about = [f"{label}: commit {record[label]['commit'][:7]}, scale {record[label]['scale']}" for label in labels]
    lines = ["; ".join(about), "", f"| part | {' | '.join(labels)} |", f"| --- |{' --- |' * len(labels)}"]
    for name in PARTS:
        cells = [_cell(record[label]["parts"].get(name)) for label in labels]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(part: dict[str, Any] | None) -> str:
    if part is None:
        return "not played"
    how = ", ".join(f"{count:,} {kind}" for kind, count in part["wrong"].items())
    return f"{part['wrong_rounds']:,} of {part['rounds']:,}" + (f": {how}" if how else "")


class _Record:
    """One entry of the record file, written as each part ends. Parts of another commit, scale or seed are not kept."""

    def __init__(self, path: Path, label: str, identity: dict[str, Any]) -> None:
        self._path, self._label = path, label
        self._all: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        entry = self._all.get(label, {})
        same = all(entry.get(key) == value for key, value in identity.items())
        self.parts: dict[str, Any] = entry.get("parts", {}) if same else {}
        self._identity = identity

    def save(self, name: str, part: dict[str, Any]) -> None:
        from rl_training.ledger.machine import machine

        self.parts[name] = part
        about = {key: value for key, value in machine(threads=1).items() if key not in ("commit", "uncommitted_changes", "gpu")}
        self._all[self._label] = {**self._identity, "machine": about, "parts": {key: self.parts[key] for key in PARTS if key in self.parts}}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._all, indent=1) + "\n", encoding="utf-8")

    def print(self, names: tuple[str, ...]) -> None:
        print(f"\n{'part':<14}{'rounds':>8}{'wrong':>7}{'seconds':>9}{'cpu':>7}  how")
        for name in names:
            part = self.parts[name]
            how = ", ".join(f"{count} {kind}" for kind, count in part["wrong"].items()) or "-"
            print(f"{name:<14}{part['rounds']:>8}{part['wrong_rounds']:>7}{part['seconds']:>9.0f}{part['cpu_seconds']:>7.0f}  {how}")


if __name__ == "__main__":
    sys.exit(main())
