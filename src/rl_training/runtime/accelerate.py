"""How an update is made fast, and the only place that decides it: `compile: auto | true | false`.

On the CPU loss, gradient, clipping and Adam become one graph, compiled ahead of time to native code (AOTInductor), so that no guard and no
Python stands before it. On a GPU sampling, update and priorities become one CUDA graph, and so does the acting pass (graphs.py).
docs/performance.md has the measurements behind both, and what else was tried.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rl_training.algorithms.pure_step import PureStep
from rl_training.algorithms.q_learner import Outcome, QLearner
from rl_training.errors import ConfigError
from rl_training.models.numpy_pass import numpy_pass
from rl_training.models.q_network import CoreState, QNetwork
from rl_training.runtime.actor import Actor, Forward
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


def missing_toolchain() -> str | None:
    """Why nothing can be compiled for the CPU here, or None."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        return f"torch {torch.__version__} cannot compile ahead of time, 2.6 can"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # what Inductor looks for
    return None if shutil.which(compiler) else f"no C++ compiler ({compiler}) is installed"


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


def numpy_forward(network: Any, obs: Array, state: CoreState, generator: torch.Generator) -> Forward | None:
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
        noise = network.draw(generator, is_first.shape, "acting").noise.numpy() if noisy else None
        return run(obs, noise), state

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


class Compiled(NamedTuple):
    """A compiled step and what it cost."""

    call: Callable[[list[Tensor]], Sequence[Tensor]]
    seconds: float
    from_cache: bool

    def __str__(self) -> str:
        return f"compiled in {self.seconds:.1f} s{', from the cache' if self.from_cache else ''}"


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


def compile_ahead_of_time(step: PureStep, inputs: Sequence[Tensor]) -> Compiled:
    """Trace the step, gradient and all, and compile it to native code; what was compiled before is loaded from the user's cache."""
    start = time.perf_counter()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the compiler's own, about its insides
        graph = trace(step, inputs)
        package = _cache_directory() / f"{_fingerprint(graph, inputs)}.pt2"
        from_cache = package.is_file()
        if not from_cache:
            _compile(graph, inputs, package)
        model = torch._inductor.aoti_load_package(str(package))
    return Compiled(model.loader.boxed_run, time.perf_counter() - start, from_cache)


def trace(step: PureStep, inputs: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations of one step, backward pass included, as a graph of its inputs."""
    from torch.fx.experimental.proxy_tensor import make_fx

    state, rest = inputs[: PureStep.NUM_STATE], inputs[PureStep.NUM_STATE :]
    buffers = [(buffer, buffer.clone()) for network in step.networks for buffer in network.buffers()]
    # Without MKL-DNN an LSTM is the products of its time steps, and the compiler fuses what stands between them; MKL-DNN's single
    # operation it cannot take. On copies of the state, since tracing runs the step.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the flags' own, about hardware that is not asked for
        with torch.backends.mkldnn.flags(enabled=False):
            graph: torch.fx.GraphModule = make_fx(step, decomposition_table=plain_products())(*(x.clone() for x in state), *rest)
    changed = [buffer for buffer, before in buffers if not torch.equal(buffer, before)]
    if changed:
        for buffer, before in buffers:
            buffer.copy_(before)
        raise RuntimeError("a network whose buffers change as it runs cannot be compiled: the graph would keep them as they are now")
    owned = {x.untyped_storage().data_ptr() for x in state}
    for name, constant in _constants(graph):
        if constant.untyped_storage().data_ptr() in owned:
            raise RuntimeError(f"{name}: a network that keeps its parameters where `parameters_from` does not find them cannot be compiled")
    return graph


LAID_OUT = range(32, 129)
"""Sides of a weight between which it pays to lay it out for a product first. MKL multiplies 64 rows by a transposed 120×84 in 25 µs,
by its copy in 12; smaller or larger ones gain less than the copy takes."""

FEW, SMALL = 4, 1 << 16
"""A product of a few rows or columns, or of sums over twice as few, with not many multiplications in all, is a loop of the compiler's
own: calling MKL takes longer."""


def plain_products() -> dict[Any, Callable[..., Any]]:
    """A table for `make_fx`: products in the forms that compile best, and `addmm` as product and sum. `addmm` copies its bias out before
    it multiplies, where the compiler puts a sum into the activation's loop. A table is for one graph."""
    aten = torch.ops.aten
    copies: dict[Any, tuple[Tensor, Tensor]] = {}  # each weight, kept so that its address stays its own, and its copy

    def laid_out(y: Tensor) -> Tensor:
        key = y.data_ptr(), y.shape, y.stride()
        if key not in copies:
            # without `as_strided` the compiler gives the copy the strides of what it is a copy of
            copies[key] = y, y.clone(memory_format=torch.contiguous_format).as_strided(y.shape, (y.shape[1], 1))
        return copies[key][1]

    def mm(x: Tensor, y: Tensor) -> Any:
        (rows, inner), columns = x.shape, y.shape[1]
        transposed = y.stride(0) == 1 and not y.is_contiguous()
        if rows * inner * columns <= SMALL:
            if transposed and columns <= FEW:
                return (x.unsqueeze(1) * y.t().unsqueeze(0)).sum(2)
            if inner <= 2 * FEW or rows <= FEW:
                return (x.unsqueeze(2) * (laid_out(y) if transposed else y).unsqueeze(0)).sum(1)
        if transposed and inner in LAID_OUT and columns in LAID_OUT:
            return aten.mm.default(x, laid_out(y))
        return NotImplemented

    def addmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        return torch.mm(x, y) + bias if beta == alpha == 1 else NotImplemented

    return {aten.mm.default: mm, aten.addmm.default: addmm}


def _constants(graph: torch.fx.GraphModule) -> list[tuple[str, Tensor]]:
    return [(str(node.target), getattr(graph, str(node.target))) for node in graph.graph.nodes if node.op == "get_attr"]


OPTIONS: dict[str, Any] = {"pattern_matcher": False}
"""Inductor's patterns would make `addmm` of product and sum again; nothing here gains by the others."""


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Tensor], package: Path) -> None:
    """Written beside its name, then renamed: two runs that compile the same do not see each other's half."""
    package.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    exported = torch.export.export(graph, tuple(inputs))
    with tempfile.TemporaryDirectory(dir=package.parent) as folder:
        path = str(Path(folder) / "step.pt2")
        made = torch._inductor.aoti_compile_and_package(exported, package_path=path, inductor_configs=dict(OPTIONS))
        _require_loadable(made)
        os.replace(made, package)


def _require_loadable(package: str) -> None:
    """Load it in another process first: a torch build that cannot takes its process down (seen with 2.11 built for CUDA)."""
    load = f"import sys; sys.path[:] = {sys.path!r}; import torch; torch._inductor.aoti_load_package(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", load, package], capture_output=True, check=False, timeout=600)
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:])
        raise RuntimeError(f"torch {torch.__version__} does not load what it compiled: exit code {done.returncode} {said}")


def _cache_directory() -> Path:
    root = os.environ.get("RL_TRAINING_CACHE")
    if root is None:
        root = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "rl_training")
    return Path(root) / "compiled"


def _fingerprint(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> str:
    """Of everything the native code depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = (
        next((line for line in cpuinfo.read_text().splitlines() if line.startswith(("flags", "Features"))), "") if cpuinfo.exists() else ""
    )
    facts: list[Any] = [graph.code, OPTIONS, torch.__version__, torch.version.cuda, torch.get_num_threads(), platform.platform(), flags]
    facts += [(tuple(x.shape), x.stride(), str(x.dtype)) for x in inputs]
    facts += [(name, x.dtype, tuple(x.shape), x.tolist()) for name, x in _constants(graph)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()
