"""`rl-training doctor`: what is installed, what the machine has, which environments can be made, and how fast it all is."""

from __future__ import annotations

import os
import platform
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import torch
from packaging.requirements import Requirement

from rl_training.envs.factory import find_env, make_envs
from rl_training.errors import UserError
from rl_training.experiment.config import load_config
from rl_training.experiment.runs import versions
from rl_training.models.network import Facts
from rl_training.resources import available_memory, format_bytes, usable_cores
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.devices import resolve_threads
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import train
from rl_training.types import EnvStep

DISTRIBUTION = "rl-training"
ENVIRONMENTS = {
    "CartPole-v1": "Gymnasium",
    "rl_training/TMaze-v0": "this package",
    "LunarLander-v3": "extra box2d",
    "popgym:popgym-RepeatPreviousEasy-v0": "extra memory",
    "MinAtar/Breakout-v1": "extra minatar",
    "ale_py:ALE/Pong-v5": "ale-py",
}


class Line(NamedTuple):
    """One finding: under which heading, what, and how it is."""

    section: str
    name: str
    finding: str


def examine(speed_seconds: float) -> Iterator[Line]:
    """Everything there is to say, one line after another; the last ones measure for `speed_seconds` altogether."""
    for name, version in versions().items():
        yield Line("versions", name, version)
    yield from _machine()
    for extra, missing in sorted(extras().items()):
        yield Line("extras", extra, f"missing {', '.join(missing)}: pip install '{DISTRIBUTION}[{extra}]'" if missing else "installed")
    for env_id, origin in ENVIRONMENTS.items():
        yield Line("environments", f"{env_id.rpartition(':')[2]} ({origin})", _can_be_made(env_id))
    if speed_seconds > 0:
        yield from _speed(speed_seconds)


def _machine() -> Iterator[Line]:
    yield Line("machine", "platform", platform.platform().replace("-with-", " with "))
    cores, usable = os.cpu_count(), usable_cores()
    yield Line("machine", "CPU cores", str(cores) if usable == cores else f"{usable} of {cores}")
    memory = available_memory()
    yield Line("machine", "memory available", "unknown" if memory is None else format_bytes(memory))
    kinds = {"MLPs": Facts(0, recurrent=False, convolutional=False), "recurrent networks": Facts(0, recurrent=True, convolutional=False)}
    threads = [f"{resolve_threads('auto', facts).value} for {what}" for what, facts in kinds.items()]
    yield Line("machine", "threads: auto", ", ".join(threads))
    for index in range(torch.cuda.device_count()):
        free = available_memory(f"cuda:{index}")
        yield Line("machine", f"cuda:{index}", f"{torch.cuda.get_device_name(index)}, {format_bytes(free or 0)} available")
    if not torch.cuda.is_available():
        yield Line("machine", "cuda", "torch sees no GPU")
    if torch.backends.mps.is_available():
        yield Line("machine", "mps", "available")


def extras() -> dict[str, list[str]]:
    """The package's optional extras as installed, each with the distributions it still lacks."""
    try:
        requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
        names = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a folder that was never installed
        return {}
    return {extra: sorted(set(_missing(requirements, extra))) for extra in names}


def _missing(requirements: list[Requirement], extra: str) -> Iterator[str]:
    for requirement in requirements:
        if requirement.marker is None or "extra" not in str(requirement.marker) or not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            needed = metadata.requires(requirement.name) or ()
        except metadata.PackageNotFoundError:
            yield requirement.name
            continue
        for inner in requirement.extras:  # gymnasium[box2d]
            yield from _missing([Requirement(text) for text in needed], inner)


def _can_be_made(env_id: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a package warns of while it is imported is not the finding
            find_env(env_id)
            make_envs(env_id, num_envs=1, seed=0).close()
    except UserError as error:
        return f"no: {error}"
    return "yes"


def _speed(seconds: float) -> Iterator[Line]:
    share = seconds / 3
    yield Line("speed", "CartPole-v1, 8 environments, random actions", f"{_env_steps_per_second(share):,.0f} steps/s")
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for config in ("dqn/cartpole.yaml", "drqn/cartpole.yaml"):
        for device in devices:
            steps, updates = _training_per_second(config, device, share / len(devices))
            yield Line("speed", f"training configs/{config} on {device}", f"{steps:,.0f} steps/s with {updates:,.0f} updates/s")


def _env_steps_per_second(seconds: float) -> float:
    envs = make_envs("CartPole-v1", num_envs=8, seed=0)
    envs.reset()
    rng, steps, began = np.random.default_rng(0), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        envs.step(rng.integers(2, size=8))
        steps += 8
    return steps / (time.perf_counter() - began)


class _StopAfter(Callback):
    """Counts from the first update on: what comes before it is not what training costs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.steps = self.updates = 0.0
        self._from: tuple[float, int, int] | None = None

    def on_step(self, run: Run, step: EnvStep) -> None:
        now, clock = time.perf_counter(), run.clock
        if self._from is None:
            if clock.updates:
                self._from = now, clock.env_steps, clock.updates
        elif now - self._from[0] >= self._seconds:
            elapsed = now - self._from[0]
            self.steps, self.updates = (clock.env_steps - self._from[1]) / elapsed, (clock.updates - self._from[2]) / elapsed
            run.stop("measured")


def _training_per_second(config: str, device: str, seconds: float) -> tuple[float, float]:
    """Environment steps and updates a second of a shipped config, as it trains."""
    # Not compiled: that pays only after more steps than there is time for.
    changes: dict[str, Any] = {"compile": False, "log_interval": 0, "eval_interval": 0, "checkpoint_interval": 0, "eval_episodes": 1}
    stop = _StopAfter(seconds)
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_config(config)
        small = {**loaded.algo_kwargs, "learning_starts": 200}
        train(
            loaded.replace(**changes, device=device, output_dir=folder, total_timesteps=10**9, algo_kwargs=small, checkpoint_replay=False),
            callbacks=[stop],
        )
    return stop.steps, stop.updates
