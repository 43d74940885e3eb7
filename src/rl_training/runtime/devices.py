"""What `auto` means: resolved once from what the network says of itself, saved with the run and reused on resume."""

from __future__ import annotations

import os
import platform
import re
from typing import NamedTuple

import torch

from rl_training.errors import ConfigError, warn
from rl_training.experiment.explain import shown
from rl_training.models.image_torsos import ImageTorso
from rl_training.models.network import Facts, Network
from rl_training.models.precision import MixedPrecision
from rl_training.resources import usable_cores
from rl_training.runtime.accelerate import resolve_compile
from rl_training.types import DEVICE_NAMES

LARGE_MLP = 1_000_000
"""Parameters from which an MLP is given a GPU and several threads. A round number well above the sizes that were measured
(docs/performance.md), not a measured border."""


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
    precision: str = "auto",
    num_quantiles: int = 0,
) -> Resources:
    """What the config asks for, with every `auto` decided by the network's facts.

    planned_updates: None for a row that learns from rollouts.
    """
    on = resolve_device(device, facts)
    compiled = resolve_compile(
        compile,
        device=torch.device(on.value),
        planned_updates=planned_updates,
        recurrent=facts.recurrent,
        num_quantiles=num_quantiles,
    )
    return Resources(
        on,
        resolve_threads(threads, facts),
        resolve_precision(precision, on.value, facts),
        Resolved("on" if compiled.on else "off", compiled.why),
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
    if not re.fullmatch(DEVICE_NAMES, name) or name == "auto":
        raise ConfigError(f"device {shown(name)} is unknown; use auto, cpu, cuda, cuda:<number> or mps")
    kind, _, number = name.partition(":")  # not torch.device(name).index, which is -56 of cuda:200 and 0 of cuda:256
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {name} was asked for, but torch sees no GPU; use auto or cpu")
        if number and int(number) >= (count := torch.cuda.device_count()):
            raise ConfigError(f"device {name} was asked for, but torch sees {count} GPU{'s' * (count > 1)}, counted from cuda:0")
    if kind == "mps" and not torch.backends.mps.is_available():
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
    return Resolved(str(min(usable_cores(), 8)), "one per core, at most 8")


def resolve_precision(requested: str, device: str, facts: Facts) -> Resolved:
    """`auto` is TF32 on a GPU for recurrent cores and convolutions: they are cuDNN's, which takes it by torch's default, and the layers
    around them then may too. bfloat16 is for whoever asks for it: on a GPU, or for convolutions on a CPU, whose processor should have
    instructions for it (AVX-512 BF16, AMX)."""
    on_gpu = device.startswith("cuda")
    instead = "use auto or float32 (--set precision=auto)"
    if not on_gpu and (requested == "tf32" or (requested == "bf16" and torch.device(device).type != "cpu")):
        raise ConfigError(f"precision: {requested} is a GPU's; this run computes on {device}: {instead}")
    if requested == "bf16" and not on_gpu and not facts.convolutional:
        raise ConfigError(f"precision: bf16 on the CPU is for convolutions, and this network has none: {instead}")
    if requested == "bf16" and on_gpu and not torch.cuda.is_bf16_supported():
        raise ConfigError(f"precision: bf16 cannot be had on {torch.cuda.get_device_name(device)}; use auto, tf32 or float32")
    if requested == "bf16" and not on_gpu and lacks_bf16():
        warn("precision: bf16 is slower than float32 on this processor, which has no instructions for it (AVX-512 BF16 or AMX)")
    if requested != "auto":
        return Resolved(requested, "as configured")
    if on_gpu and (facts.recurrent or facts.convolutional):
        return Resolved("tf32", "as cuDNN's layers have it")
    return Resolved("float32", "what parameters and losses are held in")


def lacks_bf16() -> bool:
    """Whether this processor is known to have no instructions for bfloat16, which makes it slower than float32: of x86 torch says so."""
    asks = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return platform.machine().lower() in ("x86_64", "amd64") and not any(ask is None or ask() for ask in asks)


def use_precision(network: Network, precision: str, device: torch.device) -> None:
    """Make the network's passes be computed so."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "float32"
        torch.backends.cudnn.benchmark = network.facts.convolutional  # shapes are always the same: the fastest algorithm is looked for once
    if precision != "bf16":
        return
    if not isinstance(network, MixedPrecision):
        raise ConfigError(f"precision: bf16 is for the package's networks, and this one is a {type(network).__name__}; use auto")
    network.compute_dtype = torch.bfloat16
    for part in network.modules():
        if isinstance(part, ImageTorso):
            part.input_dtype, part.channels_last = torch.bfloat16, True
