"""`rl-training export`: a checkpoint's policy as one file, ONNX or torch.export, that needs nothing of this package."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rl_training.errors import RunError, UserError
from rl_training.exchange.acting_module import ActingModule
from rl_training.exchange.onnx_policy import OnnxPolicy, metadata_text, require_extra
from rl_training.exchange.parity import Named, require_parity
from rl_training.experiment.checkpointing import Checkpoint, with_checkpoint
from rl_training.experiment.files import failing_as_run_error, write_pieces
from rl_training.experiment.runs import git_state, versions
from rl_training.runtime.policy import Policy
from rl_training.runtime.workflows import policy_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

BATCH = "batch"


def export_policy(checkpoint: str | Path, file: str | Path) -> Path:
    """Writes the greedy policy of a checkpoint to `file`, a .onnx or .pt2; it is there, whole, once it does what the package's does."""
    path = Path(file)
    make = _KINDS.get(path.suffix)
    if make is None:
        raise UserError(f"{path}: a policy is exported to a file that ends in {' or '.join(_KINDS)}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'its folder does not exist'}")
    if path.suffix == ".onnx":
        require_extra("onnx", "onnxscript", "onnxruntime")
    opened, policy = with_checkpoint(checkpoint, lambda found: (found, policy_of(found)))
    try:
        content = make(policy, about(opened))
    except (RunError, UserError) as error:
        raise RunError(f"{opened.path}: was not exported: {error}") from None
    with failing_as_run_error(path):
        write_pieces(path, (content,))
    return path


def about(checkpoint: Checkpoint) -> dict[str, Any]:
    """What an exported file says of itself: where the policy comes from, what it reads, and what is left to do for whoever feeds it."""
    git = git_state()
    return {
        "row": checkpoint.config.algo,
        "env_id": checkpoint.config.env_id,
        "step": checkpoint.step,
        "version": versions().get("rl-training", "unknown"),
        "commit": "unknown" if git is None else f"{git['commit']}{'+dirty' if git['dirty'] else ''}",
        "spaces": checkpoint.spaces,
        "wrappers": _wrappers(checkpoint.config.env_kwargs),
    }


def _wrappers(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the run's wrappers that are part of the file, and those for whoever feeds it; what changes no observation is neither."""
    entries = env_kwargs.get("wrappers", ())
    names = [next(iter(entry)) if isinstance(entry, Mapping) else entry for entry in entries]
    return {
        "inside": [entry for entry, name in zip(entries, names, strict=True) if name == "normalize_observation"],
        "outside": [
            entry
            for entry, name in zip(entries, names, strict=True)
            if name not in ("normalize_observation", "normalize_reward", "time_limit")
        ],
    }


def _onnx(policy: Policy, said: Mapping[str, Any]) -> bytes:
    import onnx

    module = ActingModule(policy).eval()
    program = trace(module, policy)
    inputs = [node.name for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    outputs = list(module(**module.example(_example_obs(policy))))
    with _quiet():
        try:
            made = torch.onnx.export(program, dynamo=True, verbose=False, input_names=inputs, output_names=outputs)
        except Exception as error:  # as in `trace`
            raise _cannot(error) from error
    assert made is not None
    model = made.model_proto
    _bare(model)
    onnx.helper.set_model_props(model, metadata_text(said))
    content: bytes = model.SerializeToString()
    exported = OnnxPolicy(content, source="the exported file")
    require_parity(exported.run, policy)
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


def _torch_export(policy: Policy, said: Mapping[str, Any]) -> bytes:
    program = trace(ActingModule(policy).eval(), policy)
    for node in program.graph.nodes:
        for trail in ("stack_trace", "nn_module_stack", "source_fn_stack"):  # which name files of this machine
            node.meta.pop(trail, None)
    module = program.module()

    def run(inputs: Named) -> Named:
        with torch.inference_mode():
            found = module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
        return {name: value.numpy() for name, value in found.items()}

    require_parity(run, policy)
    content = io.BytesIO()
    with _quiet():
        torch.export.save(program, content, extra_files=metadata_text(said))
    return content.getvalue()


_KINDS: dict[str, Callable[[Policy, Mapping[str, Any]], bytes]] = {".onnx": _onnx, ".pt2": _torch_export}


def trace(module: ActingModule, policy: Policy) -> ExportedProgram:
    """The module as a graph that holds for a batch of any size."""
    example = module.example(_example_obs(policy))
    batch = torch.export.Dim(BATCH, min=1)
    shapes = {name: {1 if name in module.state_names else 0: batch} for name in example}
    with _quiet(), torch.no_grad():
        try:
            return torch.export.export(module, (), example, dynamic_shapes=shapes)
        except Exception as error:  # a network of somebody's own may do what no graph can hold
            raise _cannot(error) from error


def _example_obs(policy: Policy) -> torch.Tensor:
    """Two observations: a batch of one would be taken for a constant."""
    return torch.zeros(2, *policy.obs_shape, dtype=getattr(torch, policy.obs_dtype))


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
