"""Where a run's replay lives: `replay_device: auto | cpu | cuda`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from rl_training.data.replay import Replay
from rl_training.data.transferred import Buffer, TransferredReplay
from rl_training.errors import ConfigError, UserError
from rl_training.resources import TooLarge, format_bytes
from rl_training.runtime.trainer_setup import Setup

HOST = torch.device("cpu")
B = TypeVar("B", bound=Buffer)


def place_replay(setup: Setup, make: Callable[..., B], *, sample: int) -> tuple[B, Replay]:
    """The buffer that `make(device=)` makes, and the replay it is to the learner. Where shards hold the items, it shows what they are, with
    a capacity of `sample`.

    It lives where it is learned from, or in host memory where it does not fit there (`auto`) or the config says so. What was chosen is
    noted; what fits nowhere is a UserError with what there is.
    """
    if setup.config.replay_shards:
        shown = make(capacity=sample)
        return shown, shown
    requested, device = setup.config.replay_device, setup.device
    if requested == "cuda" and device.type != "cuda":
        raise ConfigError(f"replay_device: cuda is for a run that learns there, and this one computes on {device}; use auto or cpu")
    places = [device] if requested == "cuda" or device == HOST else [HOST] if requested == "cpu" else [device, HOST]
    refused: list[TooLarge] = []
    for place in places:
        try:
            held = make(device=place)
        except TooLarge as error:
            refused.append(error)
            continue
        why = refused[0].figures if refused else "where it is learned from" if requested == "auto" else "as configured"
        setup.notes["replay_device"] = f"{place.type} ({why})"
        return held, held if place == device else TransferredReplay(held, device)
    if len(refused) == 1:
        raise refused[0]
    gpu, host = refused
    raise UserError(f"{gpu.what} {gpu.figures} and {format_bytes(host.available)} on the host: lower algo_kwargs.buffer_capacity")
