"""What `auto` means: resolved once from what the network says of itself, saved with the run and reused on resume."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple, TypeAlias

import torch

from rl_training.errors import ConfigError
from rl_training.models.network import Facts
from rl_training.runtime.accelerate import resolve_compile

LARGE_MLP = 1_000_000
"""Parameters from which an MLP is given a GPU and several threads. A round number well above the sizes that were measured
(docs/performance.md), not a measured border."""

Precision: TypeAlias = Literal["highest", "high"]
"""Of float32 products on a GPU, as `torch.set_float32_matmul_precision` names them."""


class Resolved(NamedTuple):
    value: str
    why: str


class Resources(NamedTuple):
    """What a run computes with, each with the reason."""

    device: Resolved
    threads: Resolved
    precision: Resolved
    compile: Resolved  # "on" or "off"


def resolve(
    facts: Facts,
    *,
    device: str,
    threads: int | str,
    compile: str | bool,
    planned_updates: int | None,
    num_quantiles: int = 0,
) -> Resources:
    """What the config asks for, with every `auto` decided by the network's facts.

    planned_updates: None for a row that has no compiled step.
    """
    on = resolve_device(device, facts)
    compiled = resolve_compile(
        compile,
        device=torch.device(on.value),
        planned_updates=planned_updates,
        recurrent=facts.recurrent,
        convolutional=facts.convolutional,
        num_quantiles=num_quantiles,
    )
    return Resources(
        on, resolve_threads(threads, facts), resolve_precision(on.value, facts), Resolved("on" if compiled.on else "off", compiled.why)
    )


def is_small_mlp(facts: Facts) -> bool:
    return not facts.recurrent and not facts.convolutional and facts.parameters < LARGE_MLP


def resolve_device(requested: str, facts: Facts) -> Resolved:
    """`auto` takes the GPU where there is one and the network is worth it: a small MLP is faster on the CPU."""
    if requested != "auto":
        require_device(requested)
        return Resolved(requested, "as configured")
    if not torch.cuda.is_available():
        return Resolved("cpu", "torch sees no GPU")
    if is_small_mlp(facts):
        return Resolved("cpu", "a small MLP is faster on the CPU")
    return Resolved("cuda", "a GPU is there and the network is worth it")


def require_device(name: str) -> None:
    """Raises ConfigError unless torch can compute on the device called `name` here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r} is unknown; use auto, cpu or cuda") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {name} was asked for, but torch sees no GPU; use auto or cpu")
        if ":" in name and device.index >= (count := torch.cuda.device_count()):
            raise ConfigError(f"device {name} was asked for, but torch sees {count} GPU{'s' * (count > 1)}, counted from cuda:0")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device mps was asked for, but torch has no such device here; use auto or cpu")


def resolve_threads(requested: int | str, facts: Facts) -> Resolved:
    """`auto` is one thread for small MLPs, where two never helped, and for other networks one per core (at most 8), or as OMP_NUM_THREADS
    says: whoever sets it shares the machine, where threads that wait for each other cost far more than they give."""
    if requested != "auto":
        return Resolved(str(requested), "as configured")
    if is_small_mlp(facts):
        return Resolved("1", "more threads do not help a small MLP")
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return Resolved(wanted, "OMP_NUM_THREADS")
    return Resolved(str(min(os.cpu_count() or 1, 8)), "one per core, at most 8")


def resolve_precision(device: str, facts: Facts) -> Resolved:
    """Recurrent cores and convolutions are cuDNN's, which takes TF32 by torch's default: the layers around them then may too."""
    if device.startswith("cuda") and (facts.recurrent or facts.convolutional):
        return Resolved("high", "TF32, as cuDNN's layers have it")
    return Resolved("highest", "float32")
