"""Hardware, versions and commit: what a number needs beside it to mean anything."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from rl_training.experiment.runs import git_state

PACKAGES = ("rl-training", "torch", "numpy", "numba", "gymnasium")


def machine(threads: int, also: Iterable[str] = ()) -> dict[str, Any]:
    """This machine, now. `also` names further packages whose versions count."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
    git = git_state() or {}
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": git.get("commit"),
        "uncommitted_changes": git.get("dirty"),
        "cpu": model,
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": threads,
        "load_average": os.getloadavg(),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": _versions((*PACKAGES, *also)),
    }


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
