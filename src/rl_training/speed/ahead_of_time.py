"""A gradient step as native code (AOTInductor), so that no guard and no Python stands before it; kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.q_learner import Outcome, QLearner
from rl_training.experiment.files import digest, is_regular
from rl_training.speed.pure_step import PureStep
from rl_training.types import Batch


class Compiled(NamedTuple):
    """A compiled step and what it cost."""

    call: Callable[[list[Tensor]], Sequence[Tensor]]
    seconds: float
    from_cache: bool

    def __str__(self) -> str:
        return f"compiled in {self.seconds:.1f} s{', from the cache' if self.from_cache else ''}"


def compile_ahead_of_time(step: PureStep, inputs: Sequence[Tensor]) -> Compiled:
    """Trace the step, gradient and all, and compile it to native code; what was compiled before is loaded from the user's cache."""
    start = time.perf_counter()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the compiler's own, about its insides
        graph = trace(step, inputs)
        fingerprint = _fingerprint(graph, inputs)
        package = _cached(fingerprint)
        from_cache = package is not None
        if package is None:
            package = _compile(graph, inputs, fingerprint)
        model = torch._inductor.aoti_load_package(str(package))
    return Compiled(model.loader.boxed_run, time.perf_counter() - start, from_cache)


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
"""Sides of a weight between which it pays to lay it out for a product first: there MKL is slower by a transposed matrix than by its copy,
and the copy takes less than that."""

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


def _cached(fingerprint: str) -> Path | None:
    """The package that was compiled before, if it is still as it was written: its name holds its digest, and a damaged one, which may
    take the process down when it is loaded, is thrown away."""
    for package in sorted(_cache_directory().glob(f"{fingerprint}.*.pt2")):
        try:
            if is_regular(package) and package.name == f"{fingerprint}.{digest(package)}.pt2":
                return package
            package.unlink()
        except OSError:  # gone meanwhile, or not ours to read or remove: another one is compiled
            continue
    return None


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Tensor], fingerprint: str) -> Path:
    """Written beside its name, then renamed: two runs that compile the same do not see each other's half."""
    cache = _cache_directory()
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    exported = torch.export.export(graph, tuple(inputs))
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        path = str(Path(folder) / "step.pt2")
        made = torch._inductor.aoti_compile_and_package(exported, package_path=path, inductor_configs=dict(OPTIONS))
        _require_loadable(made)
        package = cache / f"{fingerprint}.{digest(Path(made))}.pt2"
        os.replace(made, package)
    return package


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
