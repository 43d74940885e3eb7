"""Two passes that do not need each other, side by side."""

from __future__ import annotations

from functools import cache
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

LANES = 2


@cache
def side_stream(device: torch.device, lane: int = 0) -> Any:
    """A stream on which work is put beside the rest. It must have been made before a capture begins."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped


class Beside:
    """In a CUDA graph, what is done inside runs beside what follows, until `join`; anywhere else it simply comes first.

    The small networks of this field leave most of a GPU idle, so that two of them at once take hardly longer than one. Outside of a capture
    tensors that cross streams would need the allocator's care, and there is nothing to win: launching is what takes the time there.
    """

    def __init__(self, like: Tensor, lane: int = 0) -> None:
        """lane: works in different lanes run beside each other too."""
        self._lane = lane
        self._device = like.device if like.is_cuda and torch.cuda.is_current_stream_capturing() else None
        self._inside: Any = None  # torch's context manager, where there is a capture

    def __enter__(self) -> Beside:
        if self._device is not None:
            side = side_stream(self._device, self._lane)
            side.wait_stream(torch.cuda.current_stream(self._device))
            self._inside = torch.cuda.stream(side)
            self._inside.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._inside is not None:
            self._inside.__exit__(kind, error, trace)

    def join(self) -> None:
        """From here on what was done inside is there."""
        if self._device is not None:
            torch.cuda.current_stream(self._device).wait_stream(side_stream(self._device, self._lane))
