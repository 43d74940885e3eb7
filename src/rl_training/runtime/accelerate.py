"""How an update is made fast, and the only place that decides it: `compile: auto | true | false`.

On the CPU loss, gradient, clipping and Adam become one graph, compiled ahead of time to native code (ahead_of_time.py). On a GPU
sampling, update and priorities become one CUDA graph, and so does the acting pass (graphs.py). docs/performance.md has the measurements
behind both, and what else was tried.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from rl_training.algorithms.pure_step import PureStep
from rl_training.algorithms.q_learner import Outcome, QLearner
from rl_training.errors import ConfigError
from rl_training.models.network import CoreState, Network
from rl_training.models.numpy_pass import numpy_pass
from rl_training.models.q_network import QNetwork
from rl_training.runtime.actor import Actor, Forward
from rl_training.runtime.ahead_of_time import Compiled, compile_ahead_of_time, missing_toolchain
from rl_training.runtime.graphs import GraphedForward, GraphedUpdates
from rl_training.types import Array, Batch, UpdateResult


class Updates(Protocol):
    """One call at a global step: sample, learn, give the priorities back."""

    overlaps: bool
    """Whether a call returns before its work is done, so that the environments can step meanwhile."""

    def __call__(self, global_step: int) -> UpdateResult: ...


Say = Callable[[str, str], None]
"""(what, text): what is going on, for the progress line and the run's metadata."""

BREAK_EVEN_UPDATES = 50_000
"""From how many updates on `auto` compiles; see docs/performance.md for the measurement."""

MOST_QUANTILES = 100
"""With more, `auto` does not compile: at 51 the compiled update was faster, at 200 it was not (the same page)."""


class Decision(NamedTuple):
    """What `compile` resolved to."""

    on: bool
    why: str


def resolve_compile(
    requested: str | bool, *, device: torch.device, planned_updates: int | None, recurrent: bool, num_quantiles: int = 0
) -> Decision:
    """`auto` compiles where that pays. It does not look into the cache: what a run is must not depend on what ran before it.

    planned_updates: None for a row that has no compiled step.
    """
    if requested is False:
        return Decision(False, "as configured")
    if planned_updates is None:
        return _refused(requested, "this algorithm has no compiled step")
    if device.type == "cuda":
        return Decision(True, "as configured" if requested is True else "one CUDA graph per update")
    if device.type != "cpu":
        return _refused(requested, f"there is no compiled step on {device.type}")
    missing = missing_toolchain()
    if missing is not None:
        return _refused(requested, missing)
    if requested is True:
        return Decision(True, "as configured")
    if recurrent:
        return Decision(False, "an LSTM may lose by compiling, which takes minutes; true compiles it")
    if num_quantiles > MOST_QUANTILES:
        return Decision(False, f"nothing is gained by compiling a loss over {num_quantiles} quantiles, which is one kernel already")
    if planned_updates < BREAK_EVEN_UPDATES:
        return Decision(False, f"{planned_updates:,} updates do not pay for compiling; {BREAK_EVEN_UPDATES:,} do")
    return Decision(True, f"{planned_updates:,} updates pay for compiling")


def _refused(requested: str | bool, why: str) -> Decision:
    if requested is True:
        raise ConfigError(f"compile: true cannot be had: {why}; use compile: auto or false")
    return Decision(False, why)


def make_updates(
    learner: QLearner, replay: Any, batch_size: int, beta: Callable[[int], float] | None, *, device: torch.device, compile: bool, say: Say
) -> Updates:
    """`beta` (of the environment steps) says that the replay is prioritized."""
    if compile and device.type == "cuda":
        return GraphedUpdates(learner, replay, batch_size, beta, device)
    eager = SampledUpdates(learner, replay, batch_size, beta)
    return CompilingUpdates(eager, say) if compile else eager


def accelerate_acting(actor: Actor, device: torch.device, *, compile: bool) -> None:
    """On a GPU the acting pass becomes one CUDA graph too. On the CPU it is NumPy's wherever it can be, compiled or not."""
    if device.type == "cpu":
        actor.use_forward(numpy_forward)
    elif compile and device.type == "cuda":
        actor.use_forward(partial(GraphedForward, device=device))


def numpy_forward(network: Network, obs: Array, state: CoreState, generator: torch.Generator) -> Forward | None:
    """`network.step` without torch, where the network has such a form (models/numpy_pass.py)."""
    made = numpy_pass(network, len(obs))
    if made is None:
        return None
    run, noisy = made, bool(isinstance(network, QNetwork) and network.head.noise_dim)
    parameter = next(network.parameters())
    address = parameter.data_ptr()

    def forward(obs: Array, state: CoreState, is_first: Array) -> tuple[Array, CoreState]:
        nonlocal run, address
        if parameter.data_ptr() != address:  # the parameters were moved: the arrays would go on reading the old ones
            run, address = numpy_pass(network, len(obs)) or run, parameter.data_ptr()
        noise = network.draw(generator, is_first.shape, "acting").noise if noisy else None
        return run(obs, None if noise is None else noise.numpy()), state

    return forward


class SampledUpdates:
    """Sample, update, give the priorities back."""

    overlaps = False

    def __init__(self, learner: QLearner, replay: Any, batch_size: int, beta: Callable[[int], float] | None) -> None:
        self.learner, self._replay, self._batch_size, self._beta = learner, replay, batch_size, beta
        # a replay whose `sample` does not say that it packs, a user's own for one, is asked for usual batches
        packs = "packed" in inspect.signature(replay.sample).parameters
        self.unpack: Callable[[Batch], Batch] = replay.unpack if packs else dict
        self.how: dict[str, Any] = {}  # to sample

    def __call__(self, global_step: int) -> UpdateResult:
        return self.learn_from(self.sample(global_step), global_step)

    def sample(self, global_step: int) -> Batch:
        batch: Batch
        if self._beta is None:
            batch = self._replay.sample(self._batch_size, **self.how)
        else:
            batch = self._replay.sample(self._batch_size, beta=self._beta(global_step), **self.how)
        return batch

    def learn_from(self, batch: Batch, global_step: int) -> UpdateResult:
        result = self.learner.update(batch, global_step=global_step)
        if self._beta is not None:
            self._replay.update_priorities(batch["indices"], self.learner.last_priorities)
        return result


class CompilingUpdates:
    """The same, with the learner's step compiled when the first batch is there to show its layout."""

    overlaps = False

    def __init__(self, updates: SampledUpdates, say: Say) -> None:
        self._updates, self._say, self._compiled = updates, say, False

    def __call__(self, global_step: int) -> UpdateResult:
        if self._compiled:
            return self._updates(global_step)
        self._compiled, updates = True, self._updates
        if updates.unpack is not dict:  # the replay can leave it to the compiled step to take its rows apart
            updates.how = {"packed": True}
        batch = updates.sample(global_step)
        self._say("compilation", "compiling…")
        try:
            done = str(compile_learner(updates.learner, batch, updates.unpack))
        except Exception as error:  # whatever a compiler may raise: the run does not need it
            done = f"could not compile, goes on without: {' '.join(str(error).split())[:200]}"
            warnings.warn(done, RuntimeWarning, stacklevel=2)
            updates.how, batch = {}, updates.unpack(batch)
        self._say("compilation", done)
        return updates.learn_from(batch, global_step)


def compile_learner(learner: QLearner, batch: Batch, unpack: Callable[[Batch], Batch] = dict) -> Compiled:
    """From now on the learner's gradient steps run as one compiled graph, for batches laid out as this one; for others as before.

    unpack: what makes the learner's fields of such a batch.
    """
    step = PureStep(learner, batch, unpack)
    before = learner.generator.get_state()
    inputs = step.inputs(batch, 0.0)
    learner.generator.set_state(before)  # the example's draws do not count
    compiled = compile_ahead_of_time(step, inputs)
    call = compiled.call

    def gradient_step(batch: Batch, learning_rate: float) -> Outcome:
        if not step.takes(batch):
            return learner.eager_step(unpack(batch), learning_rate)
        return step.apply(call, batch, learning_rate)

    learner.gradient_step = gradient_step
    return compiled
