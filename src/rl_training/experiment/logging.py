"""Where metrics go: a line of JSON per record, and TensorBoard, under the tags Stable-Baselines3 users know."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from typing_extensions import Self

from rl_training.experiment.files import failing_as_run_error, open_to_append


class Sink(Protocol):
    """Anything that takes records: `step` is in environment steps."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """`{"step": 1000, "train/loss": 0.1}` a line; a killed process loses none that was written.

    The file stays strict JSON: a value that is not finite is written as null.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        with failing_as_run_error(self._path):
            self._file = _Unbuffered(self._path)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        record = {"step": step} | {tag: value if math.isfinite(value) else None for tag, value in values.items()}
        with failing_as_run_error(self._path):
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """TensorBoard events. `purge_step` makes TensorBoard forget what an earlier process wrote from that step on (resume).

    One event a record, written at once: the usual SummaryWriter has a thread, whose failure on a full disk is a traceback nobody asked for.
    """

    def __init__(self, directory: str | Path, purge_step: int | None = None) -> None:
        # Only a run needs them; tensorboard ships no types.
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]  # no stubs
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]  # no stubs

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._path = Path(directory) / f"events.out.tfevents.{time.time_ns() // 10**9}.{os.getpid()}.{next(_NUMBER)}"
        with failing_as_run_error(self._path):
            self._file = _Unbuffered(self._path)
            self._records = RecordWriter(self._file)
            self._add(file_version="brain.Event:2")
            if purge_step is not None:
                self._add(step=purge_step, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())

    def write(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        with failing_as_run_error(self._path):
            self._add(step=step, summary=self._summary(value=scalars))

    def close(self) -> None:
        self._file.close()


_NUMBER = itertools.count()  # two sinks of one process and second are two files


class _Unbuffered:
    """A file to append to where every write is done or has failed when it returns, so that closing cannot fail again."""

    def __init__(self, path: Path) -> None:
        self._raw = io.FileIO(open_to_append(path), "ab")

    def write(self, data: bytes) -> None:
        while data:
            data = data[self._raw.write(data) :]  # a disk that gets full takes a part; the rest then fails

    def close(self) -> None:
        self._raw.close()


class Sinks:
    """Several sinks as one; a `with` block closes them."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for sink in self._sinks:
            sink.write(step, values)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # all of them, even where one fails
            for sink in self._sinks:
                stack.callback(sink.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
