"""Processor time of a command and of everything it starts, by what it is: it hardly depends on what else a machine does (Linux only)."""

from __future__ import annotations

import os
from pathlib import Path

ACTOR = "ray::ActorProcess"
TICKS = os.sysconf("SC_CLK_TCK")


def by_role(root: int) -> dict[str, float]:
    """Seconds so far of the process `root` (`driver`), of the actors below it, and of the rest below it (`ray`)."""
    parents, seconds = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(folder.name)
        parents[pid], seconds[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    found = {"driver": 0.0, "actors": 0.0, "ray": 0.0}
    for pid, value in seconds.items():
        if pid == root:
            found["driver"] += value
        elif _is_below(pid, root, parents):
            found["actors" if _title(pid).startswith(ACTOR) else "ray"] += value
    return found


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == root:
            return True
    return False


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
