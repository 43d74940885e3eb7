"""What of the machine this process may use: memory, so that a buffer that cannot fit is refused before it is allocated, and cores.

Torch is imported only when a CUDA device is asked about.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rl_training.errors import UserError

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_memory(device: str = "cpu") -> int | None:
    """Bytes that can still be allocated on `device`, or None where the system does not say."""
    if device.startswith("cuda"):
        return _available_cuda(device)
    figures = [figure for figure in (_available_host(), _available_cgroup()) if figure is not None]
    return min(figures, default=None)


class TooLarge(UserError):
    """Something that does not fit into memory, with both figures."""

    def __init__(self, what: str, needed: int, available: int, device: str, remedy: str) -> None:
        self.what, self.available = what, available
        self.figures = f"needs {format_bytes(needed)} on {device}, but only {format_bytes(available)} is available"
        super().__init__(f"{what} {self.figures}: {remedy}")

    def __reduce__(self) -> tuple[type[UserError], tuple[str]]:  # an actor's process hands its error to the learner's
        return UserError, (str(self),)


def require_memory(needed: int, *, device: str, what: str, remedy: str = "lower the capacity") -> None:
    """Raise TooLarge when `needed` bytes do not fit on `device`. Of a GPU's memory a sixteenth stays for the passes of the networks."""
    available = available_memory(device)
    if available is None:
        return
    if device.startswith("cuda"):
        available -= available // 16
    if needed > available:
        raise TooLarge(what, needed, available, device, remedy)


def speed_is_on() -> bool:
    """Whether what is there for speed alone is used: `RL_TRAINING_SPEED=0` leaves it away, and what remains is correct and slower."""
    return os.environ.get("RL_TRAINING_SPEED", "1") != "0"


def format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def _available_cuda(device: str) -> int:
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    # memory that torch's allocator holds but does not use can be allocated too
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _available_host() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: ask POSIX instead
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no sysconf (Windows), or no such name (macOS)
        return None


def _available_cgroup() -> int | None:
    """The tightest memory limit among the control groups this process is in, less what they use."""
    figures = []
    for folder in _cgroups():
        try:
            limit = int((folder / "memory.max").read_text())  # "max" where there is none
            used = int((folder / "memory.current").read_text())
            reclaimable = next(
                int(line.split()[1]) for line in (folder / "memory.stat").read_text().splitlines() if line.startswith("inactive_file ")
            )
        except (OSError, ValueError, StopIteration):
            continue
        figures.append(max(0, limit - used + reclaimable))
    return min(figures, default=None)


def usable_cores() -> int:
    """Cores this process may run on: fewer than the machine has under `taskset`, and in a container with a share of them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroups():
        try:
            quota, period = map(int, (folder / "cpu.max").read_text().split())  # "max" where there is none
        except (OSError, ValueError):
            continue
        allowed = min(allowed, max(1, quota // period))
    return allowed


def _cgroups() -> Iterator[Path]:
    """The folders of the control groups (version 2) this process is in, its own first."""
    try:
        path = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return
    group = _CGROUP_ROOT / path.strip().lstrip("/")
    for folder in (group, *group.parents):
        if folder == _CGROUP_ROOT.parent:
            return
        yield folder
