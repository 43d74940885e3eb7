"""`rl-training export`: a checkpoint's policy as one file, ONNX or torch.export, that needs nothing of this package."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rl_training.envs.factory import EnvSource, make_bare
from rl_training.envs.wrappers import UNSEEN, Wrappers, parse_wrappers
from rl_training.errors import RunError, UserError, warn
from rl_training.exchange.acting_module import ActingModule
from rl_training.exchange.onnx_policy import OnnxPolicy, metadata_text, require_extra
from rl_training.exchange.parity import Named, require_parity
from rl_training.exchange.raw_observations import RawObservations, may_be_taken
from rl_training.experiment.checkpointing import Checkpoint, with_checkpoint
from rl_training.experiment.files import failing_as_run_error, write_pieces
from rl_training.experiment.runs import git_state, versions
from rl_training.runtime.policy import Policy
from rl_training.runtime.trainer_setup import env_source, require_allowed_env
from rl_training.runtime.workflows import policy_of, require_fitting_env

if TYPE_CHECKING:
    from torch.export import ExportedProgram

BATCH = "batch"


def export_policy(checkpoint: str | Path, file: str | Path, *, env: EnvSource | None = None) -> Path:
    """Writes the greedy policy of a checkpoint to `file`, a .onnx or .pt2; it is there, whole, once it does what the package's does.

    env: the environment, where a run was made with a callable. It is made only where there are wrappers that can go along.
    """
    path = Path(file)
    make = _KINDS.get(path.suffix)
    if make is None:
        raise UserError(f"{path}: a policy is exported to a file that ends in {' or '.join(_KINDS)}")
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'its folder does not exist'}")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{path}: its folder cannot be written to")
    if path.suffix == ".onnx":
        require_extra("onnx", "onnxscript", "onnxruntime")
    opened, policy = with_checkpoint(checkpoint, lambda found: (found, policy_of(found)))
    raw, first = _taken_along(opened, policy, env)
    try:
        content = make(policy, about(opened, first), raw)
    except (RunError, UserError) as error:
        raise RunError(f"{opened.path}: was not exported: {error}") from None
    with failing_as_run_error(path):
        write_pieces(path, (content,))
    return path


def _taken_along(checkpoint: Checkpoint, policy: Policy, env: EnvSource | None) -> tuple[RawObservations | None, int]:
    """What the file reads where it applies wrappers by itself, and the number of the first such wrapper.

    The space they begin from is no part of a checkpoint: where the environment cannot be made, they stay outside, and a warning says so.
    """
    config = checkpoint.config
    wrappers = parse_wrappers(config.env_kwargs.get("wrappers", ()))
    none_taken = None, len(wrappers.per_env)
    could = list(may_be_taken(wrappers))
    if not could:
        return none_taken
    try:
        require_allowed_env(config.env_id, source=checkpoint.path, env=env)
        source = env_source(config, env)
        bare = make_bare(source, config.env_kwargs)
    except UserError as error:
        names = " and ".join(call.name for call in could[0].calls)
        warn(f"{names} stay outside of the exported policy: {error}")
        return none_taken
    try:
        require_fitting_env(checkpoint, source)
        for first, calls in could:
            outer = Wrappers(wrappers.per_env[:first]).apply(bare)
            with contextlib.suppress(NotImplementedError):  # what this wrapper reads is no graph's input: fewer of them go along
                return RawObservations(outer, calls, frame_stack=policy.frame_stack), first
    finally:
        bare.close()
    return none_taken


def about(checkpoint: Checkpoint, first: int) -> dict[str, Any]:
    """What an exported file says of itself: where the policy comes from, what it reads, and what is left to do for whoever feeds it.

    first: the number of the first of the run's wrappers that is part of the file.
    """
    git = git_state()
    entries = checkpoint.config.env_kwargs.get("wrappers", ())
    calls = [(entry, next(iter(entry)) if isinstance(entry, Mapping) else entry) for entry in entries]
    seen = [number for number, (_, name) in enumerate(calls) if name not in UNSEEN]
    return {
        "row": checkpoint.config.algo,
        "env_id": checkpoint.config.env_id,
        "step": checkpoint.step,
        "version": versions().get("rl-training", "unknown"),
        "commit": "unknown" if git is None else f"{git['commit']}{'+dirty' if git['dirty'] else ''}",
        "spaces": checkpoint.spaces,
        "wrappers": {
            "inside": [entries[number] for number in seen if number >= first],
            "outside": [entries[number] for number in seen if number < first],
        },
    }


def _onnx(policy: Policy, said: Mapping[str, Any], raw: RawObservations | None = None) -> bytes:
    import onnx

    module = ActingModule(policy, raw).eval()
    program = trace(module)
    example = module.example()
    inputs = [*(part.input for part in module.parts), *(name for name in example if name != "obs")]
    outputs = list(module(**example))
    with _quiet():
        try:
            made = torch.onnx.export(program, dynamo=True, verbose=False, input_names=inputs, output_names=outputs)
        except Exception as error:  # as in `trace`
            raise _cannot(error) from error
    assert made is not None
    model = made.model_proto
    _bare(model)
    onnx.helper.set_model_props(model, metadata_text({**said, "observation": module.described}))
    content: bytes = model.SerializeToString()
    exported = OnnxPolicy(content, source="the exported file")
    require_parity(exported.run, policy, raw)
    return content


def _bare(model: Any) -> None:
    """Leaves out how the graph came about, which names files of this machine, and calls the batch by its name."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")
    for value in (*graph.input, *graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = BATCH


def _torch_export(policy: Policy, said: Mapping[str, Any], raw: RawObservations | None = None) -> bytes:
    acting = ActingModule(policy, raw).eval()
    program = trace(acting)
    for node in program.graph.nodes:
        for trail in ("stack_trace", "nn_module_stack", "source_fn_stack"):  # which name files of this machine
            node.meta.pop(trail, None)
    module = program.module()

    def run(inputs: Named) -> Named:
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
        parts = {name.removeprefix("obs."): tensors.pop(name) for name in inputs if name.startswith("obs.")}
        with torch.inference_mode():
            found = module(**({"obs": parts} if parts else {}), **tensors)
        return {name: value.numpy() for name, value in found.items()}

    require_parity(run, policy, raw)
    content = io.BytesIO()
    with _quiet():
        torch.export.save(program, content, extra_files=metadata_text({**said, "observation": acting.described}))
    return content.getvalue()


_KINDS: dict[str, Callable[[Policy, Mapping[str, Any], RawObservations | None], bytes]] = {".onnx": _onnx, ".pt2": _torch_export}


def trace(module: ActingModule) -> ExportedProgram:
    """The module as a graph that holds for a batch of any size."""
    example = module.example()
    batch = torch.export.Dim(BATCH, min=1)
    shapes = {
        name: {part: {0: batch} for part in given} if isinstance(given, dict) else {1 if name in module.state_names else 0: batch}
        for name, given in example.items()
    }
    with _quiet(), torch.no_grad():
        try:
            return torch.export.export(module, (), example, dynamic_shapes=shapes)
        except Exception as error:  # a network of somebody's own may do what no graph can hold
            raise _cannot(error) from error


def _cannot(error: Exception) -> RunError:
    return RunError(f"torch cannot make a graph of its network ({' '.join(str(error).split()):.300})")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch tells of packages that it looked for, and of its own deprecations."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
