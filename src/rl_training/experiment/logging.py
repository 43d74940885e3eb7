"""Where metrics go: a line of JSON per record, and TensorBoard, under the tags Stable-Baselines3 users know."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from typing_extensions import Self

from rl_training.experiment.files import failing_as_run_error


class Sink(Protocol):
    """Anything that takes records: `step` is in environment steps."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """`{"step": 1000, "train/loss": 0.1}` a line, on the disk when `write` returns (as far as the process goes).

    The file stays strict JSON: a value that is not finite is written as null.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        with failing_as_run_error(self._path):
            self._file = self._path.open("a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        record = {"step": step} | {tag: value if math.isfinite(value) else None for tag, value in values.items()}
        with failing_as_run_error(self._path):
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        with failing_as_run_error(self._path):
            self._file.close()


class TensorBoardSink:
    """TensorBoard events. `purge_step` makes TensorBoard forget what an earlier process wrote from that step on (resume)."""

    def __init__(self, directory: str | Path, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # only a run needs it

        self._directory = Path(directory)
        with failing_as_run_error(self._directory):
            self._writer = SummaryWriter(str(directory), purge_step=purge_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with failing_as_run_error(self._directory):
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        with failing_as_run_error(self._directory):
            self._writer.close()


class Sinks:
    """Several sinks as one; a `with` block closes them."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for sink in self._sinks:
            sink.write(step, values)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
