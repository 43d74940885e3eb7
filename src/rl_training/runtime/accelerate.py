"""The one door to `speed/`: what a run uses of it, and what `compile: auto | true | false` means.

On the CPU the gradient is made by hand where the network is an MLP, distributional losses are numba's, acting is NumPy's, and freed memory
is kept; compiled, a whole gradient step is one graph of native code. On a GPU sampling, update and priorities become one CUDA graph, and so
does the acting pass. docs/performance.md has the measurements behind each. `RL_TRAINING_SPEED=0` leaves all of it away, so it is imported
when it is used.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.pqn import PQN
from rl_training.algorithms.q_learner import QLearner
from rl_training.errors import ConfigError, warn
from rl_training.resources import speed_is_on
from rl_training.runtime.actor import Actor
from rl_training.runtime.off_policy import SampledUpdates, Updates
from rl_training.types import Batch, UpdateResult

Say = Callable[[str, str], None]
"""(what, text): what is going on, for the progress line and the run's metadata."""

OFF = "RL_TRAINING_SPEED=0"


def speed_note() -> str:
    """For the run's metadata."""
    return "on" if speed_is_on() else f"off ({OFF})"


BREAK_EVEN_UPDATES = 50_000
"""From how many updates on `auto` compiles; see docs/performance.md for the measurement."""

MOST_QUANTILES = 100
"""With more, `auto` does not compile: at 51 the compiled update was faster, at 200 it was not (the same page)."""


class Decision(NamedTuple):
    """What `compile` resolved to."""

    on: bool
    why: str


def resolve_compile(
    requested: str | bool,
    *,
    device: torch.device,
    planned_updates: int | None,
    recurrent: bool,
    num_quantiles: int = 0,
) -> Decision:
    """`auto` compiles where that pays. It does not look into the cache: what a run is must not depend on what ran before it.

    planned_updates: None for a row that learns from rollouts, which has graphs on a GPU and nothing to compile on the CPU.
    """
    if requested is False:
        return Decision(False, "as configured")
    if not speed_is_on():
        return _refused(requested, OFF)
    if device.type == "cuda":
        if requested is True:
            return Decision(True, "as configured")
        if planned_updates is None:  # sequences have another shape in every rollout
            return Decision(True, f"one CUDA graph per {'acting pass' if recurrent else 'gradient step'}")
        return Decision(True, "one CUDA graph per update")
    if planned_updates is None:
        return _refused(requested, "this algorithm has no compiled step")
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


def missing_toolchain() -> str | None:
    """Why nothing can be compiled for the CPU here, or None."""
    if not speed_is_on():
        return OFF
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        return f"torch {torch.__version__} cannot compile ahead of time, 2.6 can"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # what Inductor looks for
    return None if shutil.which(compiler) else f"no C++ compiler ({compiler}) is installed"


def _refused(requested: str | bool, why: str) -> Decision:
    if requested is True:
        raise ConfigError(f"compile: true cannot be had: {why}; use compile: auto or false")
    return Decision(False, why)


def accelerate_learner(learner: QLearner | PPO | PQN) -> None:
    """Make the learner's own parts fast: the gradient by hand and the rule's loops in numba, where both have such a form."""
    if not speed_is_on():
        return
    from rl_training.speed import allocator, hand_gradients, hand_policy, normed_stack
    from rl_training.speed.numba_rules import numba_rule

    allocator.keep_freed_memory()
    if isinstance(learner, PPO):
        hand_policy.use_hand_gradients(learner)
        return
    if isinstance(learner, PQN):
        hand_gradients.use_hand_gradients_of_returns(learner)
        normed_stack.use_normed_stack(learner)
        return
    if learner.optimizer.parameters.device.type == "cpu":
        learner.rule = numba_rule(learner.rule)
    hand_gradients.use_hand_gradients(learner)


def accelerate_rollouts(learner: PPO | PQN, *, steps: int, device: torch.device, compile: bool) -> None:
    """The same for one that learns from rollouts, of at most so many steps. On a GPU its gradient step becomes one CUDA graph, where its
    minibatches have one shape."""
    accelerate_learner(learner)
    if compile and speed_is_on() and device.type == "cuda":
        from rl_training.speed.rollout_graphs import use_graphed_steps

        use_graphed_steps(learner, steps, device)


def accelerate_updates(
    updates: SampledUpdates,
    *,
    device: torch.device,
    compile: bool,
    say: Say,
    planned_updates: int = 0,
    compiling: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Updates:
    """The same updates in the fastest form there is for the device; `compile` as `resolve_compile` decided. `compiling` is held while
    something is compiled. planned_updates: with enough of them convolutions are compiled for a GPU too."""
    accelerate_learner(updates.learner)
    if not compile or not speed_is_on():
        return updates
    if device.type == "cuda":
        from rl_training.speed.graphs import GraphedUpdates, HostFedUpdates

        prepare = _torso_compiler(updates.learner, say, compiling) if planned_updates >= BREAK_EVEN_UPDATES else None
        on_host = isinstance(updates.replay.generator, np.random.Generator)
        form = HostFedUpdates if on_host else GraphedUpdates
        return form(updates.learner, updates.replay, updates.batch_size, updates.beta, device, prepare)
    return CompilingUpdates(updates, say, compiling)


def _torso_compiler(learner: QLearner, say: Say, compiling: Callable[[], AbstractContextManager[None]]) -> Callable[[Batch], None] | None:
    """What compiles the learner's convolutions when the first batch is there; None where it has none, or nothing compiles for a GPU."""
    from rl_training.speed.compiled_torso import compile_torsos, image_torsos

    if not image_torsos(learner.q_network) or importlib.util.find_spec("triton") is None:
        return None

    def compile_now(batch: Batch) -> None:
        say("compilation", "compiling the torso…")
        with compiling():
            said = compile_torsos(learner, batch)
        say("compilation", said)

    return compile_now


def accelerate_acting(actor: Actor, device: torch.device, *, compile: bool) -> None:
    """On a GPU the acting pass becomes one CUDA graph too. On the CPU it is NumPy's wherever it can be, compiled or not."""
    if not speed_is_on():
        return
    if device.type == "cpu":
        from rl_training.speed.normed_stack import normed_forward
        from rl_training.speed.numpy_pass import numpy_forward

        actor.use_forward(lambda *example: numpy_forward(*example) or normed_forward(*example))
    elif compile and device.type == "cuda":
        from rl_training.speed.graphs import GraphedForward

        actor.use_forward(partial(GraphedForward, device=device))


class CompilingUpdates:
    """Updates whose learner's step is compiled when the first batch is there to show its layout."""

    overlaps = False

    def __init__(self, updates: SampledUpdates, say: Say, compiling: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._updates, self._say, self._compiling, self.compiles = updates, say, compiling, True

    def __call__(self, global_step: int) -> UpdateResult:
        if not self.compiles:
            return self._updates(global_step)
        from rl_training.speed.ahead_of_time import compile_learner

        self.compiles, updates = False, self._updates
        updates.packed = updates.replay.packs
        unpack = updates.replay.unpack if updates.packed else dict
        batch = updates.sample(global_step)
        self._say("compilation", "compiling…")
        try:
            with self._compiling():
                done = str(compile_learner(updates.learner, batch, unpack))
        except Exception as error:  # whatever a compiler may raise: the run does not need it
            done = f"could not compile, goes on without: {' '.join(str(error).split())[:200]}"
            warn(done, RuntimeWarning)
            updates.packed, batch = False, unpack(batch)
        self._say("compilation", done)
        return updates.learn_from(batch, global_step)
