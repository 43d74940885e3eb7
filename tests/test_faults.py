"""The fault campaign in its short form: some of every part's rounds, and nothing ends wrong (benchmarks/faults plays all of them)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.children import Ended
from benchmarks.faults.mutations import mutate_json, mutate_lines, mutate_text
from benchmarks.faults.runs import changed, snapshot, verdict

REPOSITORY = Path(__file__).resolve().parents[1]
PARTS = ("kills", "torn", "fuzz", "signals", "environments", "disk", "concurrency")

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the campaign forks and looks into /proc: Linux")


def test_short_campaign_finds_nothing(tmp_path: Path) -> None:
    """In a process of its own, which must have one thread where it forks; this one may have more."""
    record = tmp_path / "faults.json"
    command = [sys.executable, "-m", "benchmarks.faults", "--scale", "short", "--jobs", "1", "--json", str(record)]
    played = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=900)
    assert record.exists(), played.stdout + played.stderr
    parts = json.loads(record.read_text(encoding="utf-8"))["after"]["parts"]
    assert tuple(parts) == PARTS
    assert {name: part["examples"] for name, part in parts.items() if part["wrong"]} == {}
    assert all(part["rounds"] >= 6 for part in parts.values())
    assert played.returncode == 0, played.stdout + played.stderr


def ended(code: int | None, err: str = "", orphans: int = 0) -> Ended:
    return Ended(code, out="", err=err, seconds=1.0, orphans=orphans)


@pytest.mark.parametrize(
    ("end", "codes", "kind"),
    [
        (ended(0), (0, 2), None),
        (ended(2, "error: no such checkpoint\n"), (0, 2), None),
        (ended(2, "warning: old\nerror: no such checkpoint\n"), (0, 2), None),
        (ended(None), (0, 2), "hang"),
        (ended(1, "Traceback (most recent call last):\nKeyError: 1\n"), (0, 1), "traceback"),
        (ended(139), (0, 2), "crash"),
        (ended(1, "error: failed\n"), (0, 2), "wrong exit code"),
        (ended(2), (0, 2), "not one line"),
        (ended(2, "error: one\nerror: two\n"), (0, 2), "not one line"),
        (ended(0, orphans=2), (0, 2), "orphans"),
    ],
)
def test_verdict_knows_a_wrong_end(end: Ended, codes: tuple[int, ...], kind: str | None) -> None:
    found = verdict(end, codes)
    assert (None if found is None else found[0]) == kind


def test_mutations_change_the_file_and_repeat_by_seed() -> None:
    manifest = json.dumps({"step": 3, "config": {"algo": "dqn", "algo_kwargs": {"gamma": 0.9}}}).encode()
    for mutate in (mutate_json, mutate_text, mutate_lines):
        mutated = [mutate(manifest, random.Random(seed)) for seed in range(50)]
        assert mutated == [mutate(manifest, random.Random(seed)) for seed in range(50)]
        assert sum(data != manifest for _, data in mutated) > 40


def test_snapshot_sees_every_kind_of_change(tmp_path: Path) -> None:
    for name in ("kept", "written", "removed"):
        (tmp_path / name).write_text("before", encoding="utf-8")
    before = snapshot(tmp_path)
    assert changed(before, snapshot(tmp_path)) == []
    os.utime(tmp_path / "written", ns=(1, 1))
    (tmp_path / "removed").unlink()
    (tmp_path / "made").symlink_to("kept")
    assert changed(before, snapshot(tmp_path)) == ["made", "removed", "written"]
