"""Passes that do not need each other, side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

LANES = 2


@cache
def side_stream(device: torch.device, lane: int = 0) -> Any:
    """A stream on which work is put beside the rest. It must have been made before a capture begins."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def on_streams(*passes: Callable[[], Any]) -> list[Any]:
    """`views.in_turn`, in a CUDA graph with all but the last pass on streams of their own.

    The small networks of this field leave most of a GPU idle, so that two of them at once take hardly longer than one. Outside of a capture
    tensors that cross streams would need the allocator's care, and there is nothing to win: launching is what takes the time there.
    """
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return [each() for each in passes]
    current = torch.cuda.current_stream()
    sides = [side_stream(current.device, lane) for lane in range(len(passes) - 1)]
    results = []
    for side, each in zip(sides, passes[:-1], strict=True):
        side.wait_stream(current)
        with torch.cuda.stream(side):
            results.append(each())
    results.append(passes[-1]())
    for side in sides:
        current.wait_stream(side)
    return results
