"""What `auto` means: resolved once, said, saved with the run and reused on resume."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from rl_training.errors import ConfigError


class Resolved(NamedTuple):
    value: str
    why: str


def resolve_device(requested: str, *, small: bool) -> Resolved:
    """`auto` takes the GPU where there is one and the network is worth it: a small MLP is faster on the CPU."""
    if requested != "auto":
        try:
            device = torch.device(requested)
        except RuntimeError:
            raise ConfigError(f"device {requested!r} is unknown; use auto, cpu or cuda") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device cuda was asked for, but torch sees no GPU; use auto or cpu")
        return Resolved(requested, "as configured")
    if not torch.cuda.is_available():
        return Resolved("cpu", "torch sees no GPU")
    if small:
        return Resolved("cpu", "a small MLP is faster on the CPU")
    return Resolved("cuda", "a GPU is there and the network is worth it")


def resolve_threads(requested: int | str, *, small: bool) -> Resolved:
    """`auto` is one thread for MLPs, where two never helped, and for larger networks one per core (at most 8), or as OMP_NUM_THREADS says:
    whoever sets it shares the machine, where threads that wait for each other cost far more than they give."""
    if requested != "auto":
        return Resolved(str(requested), "as configured")
    if small:
        return Resolved("1", "more threads do not help a small MLP")
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return Resolved(wanted, "OMP_NUM_THREADS")
    return Resolved(str(min(os.cpu_count() or 1, 8)), "one per core, at most 8")
