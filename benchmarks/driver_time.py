"""Where the driver's time goes in a distributed run: each part of its loop is timed, without what it calls of the others."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from unittest import mock

from rl_training.algorithms.q_learner import QLearner
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.config import build_config
from rl_training.runtime import workflows
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.distributed.remote_actors import RemoteActors
from rl_training.runtime.distributed.weights import Publisher
from rl_training.runtime.run import Run

PARTS: dict[str, tuple[type, str]] = {
    "update": (QLearner, "update"),
    "sample": (ReplayBuffer, "sample"),
    "orders": (RemoteActors, "_order"),
    "weights": (Publisher, "newest"),
    "decoding": (RemoteActors, "_take_in"),
    "insertion": (ReplayBuffer, "add_items"),
    "waiting": (RemoteActors, "_look"),
}


class Watch(Callback):
    """Seconds of each part from the first record of a run to its last one, when everything has started and nothing ends yet."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._inner = [0.0]  # of each call under way, what it has spent in other parts
        self._began: tuple[float, int, int] | None = None
        self.row: dict[str, float] = {}

    def around(self, part: str, function: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            self._inner.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - began
                self._seconds[part] += taken - self._inner.pop()
                self._inner[-1] += taken

        return timed

    def on_log(self, run: Run, record: Mapping[str, float]) -> None:
        now, clock = time.perf_counter(), run.clock
        if self._began is None:
            self._began = now, clock.env_steps, clock.updates
            self._seconds.clear()
            return
        seconds, steps, updates = now - self._began[0], clock.env_steps - self._began[1], clock.updates - self._began[2]
        shares = {part: self._seconds[part] / seconds for part in PARTS}
        self.row = {"steps_per_s": steps / seconds, "updates_per_s": updates / seconds, **shares, "other": 1 - sum(shares.values())}


def driver_time(values: Mapping[str, Any]) -> dict[str, float]:
    """Trains in this process: steps and updates a second, and the share of the time that each part takes."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patched:
        for part, (owner, name) in PARTS.items():
            patched.enter_context(mock.patch.object(owner, name, watch.around(part, getattr(owner, name))))
        workflows.train(build_config({**values, "output_dir": folder}, source="benchmarks.driver_time"), callbacks=(watch,))
    return watch.row
