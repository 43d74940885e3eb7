"""A disk that gets full, at every fill: the run ends with exit code 1 and one line, and loses nothing that was saved."""

from __future__ import annotations

import contextlib
import functools
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.children import Work, command, run
from benchmarks.faults.runs import TIMEOUT, broken, listed, run_directory, tiny, trained, verdict, write_config
from benchmarks.faults.tally import Case, Played
from tests.resume_harness import differences

TOTAL = 240
SIZES = {"short": 2, "modest": 12, "full": 40}


def cases(scale: str, seed: int) -> list[Case]:
    count = SIZES[scale]
    ways = ("limit", "tmpfs", "copy")
    return [Case(f"disk {way}", functools.partial(_play, way, count)) for way in ways]


def _play(way: str, count: int, folder: Path, played: Played) -> None:
    config = tiny("dqn", total=TOTAL, keep_checkpoints=2)
    reference = trained(config, folder / "reference")
    if way == "copy":
        return _copies(reference, folder, count, played)
    usage = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    for number in range(count):
        share = (number + 0.5) / count
        with _small_disk(folder / f"disk-{number}", int(2 * usage * share) if way == "tmpfs" else None) as place:
            if place is None:
                return  # no small disk can be made here; the limit on files is tried all the same
            limit = int(largest * share) if way == "limit" else None
            wrong = _round(config, place, limit, reference)
        played.add(*((None, "") if wrong is None else (wrong[0], f"{way} at {share:.0%}: {wrong[1]}")))


def _round(config: dict[str, Any], place: Path, limit: int | None, reference: Path) -> tuple[str, str] | None:
    run_place = place / "runs"
    try:
        work: Work = command("train", "--config", write_config(config, run_place), "--quiet")
    except OSError:
        return None  # full before it began
    ended = run(functools.partial(_limited, limit, work), timeout=TIMEOUT, cwd=place)
    if ended.code == 0:
        return None
    if (wrong := verdict(ended, (1, 2))) is not None:
        return wrong
    run_dir = run_directory(run_place)
    if run_dir is None:
        return None
    for step in listed(run_dir):
        if (reason := broken(run_dir / "checkpoints" / f"step_{step}")) is not None:
            return "torn", reason
    if listed(run_dir) and (reason := broken(run_dir, replay=True)) is not None:
        return "lost", reason
    moved = place.parent / f"{place.name}-with-room"
    shutil.copytree(run_place, moved, symlinks=True)
    again = run_directory(moved)
    assert again is not None
    ended = run(command("resume", "--checkpoint", again, "--quiet"), timeout=TIMEOUT, cwd=moved)
    if (wrong := verdict(ended, (0,))) is not None:
        return "lost", f"with room again, resume: {wrong[1]}"
    found = differences(reference, again, TOTAL)
    shutil.rmtree(moved)
    return ("differing bytes", ", ".join(found)) if found else None


def _copies(reference: Path, folder: Path, count: int, played: Played) -> None:
    """`agent.save` over an older checkpoint, with too little room: the older one stays."""
    newest = reference / "checkpoints" / f"step_{TOTAL}"
    sizes = {path.name: path.stat().st_size for path in newest.iterdir()}
    older = reference / "checkpoints" / f"step_{listed(reference)[0]}"
    before = {path.name: path.read_bytes() for path in older.iterdir()}

    def save() -> None:
        import rl_training

        rl_training.DQN.load(newest).save(folder / "saved")

    for number in range(count):
        shutil.copytree(older, folder / "saved")
        limit = int(max(sizes.values()) * (number + 0.5) / count)
        ended = run(functools.partial(_limited, limit, save), timeout=TIMEOUT, cwd=folder)
        left = {path.name: path.read_bytes() for path in (folder / "saved").iterdir()} if (folder / "saved").is_dir() else {}
        if ended.code == 0:
            played.add("torn", "it says it saved, with no room for it")
        elif left != before:
            played.add("lost", f"with {limit} bytes a file, {sorted(left)} is left of {sorted(before)}")
        else:
            played.add()
        shutil.rmtree(folder / "saved", ignore_errors=True)


def _limited(limit: int | None, work: Work) -> None:
    """No file may grow beyond `limit` bytes: a write then fails as on a full disk."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    work()


@contextlib.contextmanager
def _small_disk(place: Path, size: int | None) -> Iterator[Path | None]:
    """A folder, on a file system of `size` bytes if that is given; None where that takes rights we do not have."""
    place.mkdir()
    if size is None:
        yield place
        return
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={max(size, 8192)}", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
        == 0
    )
    try:
        yield place if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)
