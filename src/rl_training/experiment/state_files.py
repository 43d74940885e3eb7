"""A part's state as two halves: tensors in a safetensors file, everything else as JSON. Nothing is ever unpickled.

    {"weights": tensor, "step": 3}   →   safetensors {"weights": tensor}   +   JSON {"weights": {"$tensor": "float32[2,2]"}, "step": 3}

A tensor's name in the file is its path joined by "/": the JSON half names no file and no tensor, so it can point nowhere else.
Equal states give equal bytes: safetensors orders by name, and no metadata is written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl_training.errors import CheckpointError, RunError
from rl_training.experiment.files import digest, is_regular, reason, sync
from rl_training.types import State

_TENSOR, _FLOAT = "$tensor", "$float"


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}".replace(" ", "")


def _on_cpu(value: Tensor | np.ndarray[Any, np.dtype[Any]]) -> Tensor:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.require(value, requirements=("C", "W")))
    return value.detach().cpu().contiguous()


def split_state(state: State) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON half and the tensors of `state`, by path."""
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()

    def visit(value: Any, path: str) -> Any:
        if isinstance(value, (Tensor, np.ndarray)):
            tensor = _on_cpu(value)
            # Parameters are views of one flat tensor, and safetensors refuses two tensors that share their memory.
            if tensor.nbytes and tensor.untyped_storage().data_ptr() in storages:
                tensor = tensor.clone()
            storages.add(tensor.untyped_storage().data_ptr())
            tensors[path] = tensor
            return {_TENSOR: _kind(tensor)}
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {_FLOAT: str(value)}
        if isinstance(value, (list, tuple)):
            return [visit(item, f"{path}/{index}") for index, item in enumerate(value)]
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) or not key or "/" in key or key in (_TENSOR, _FLOAT):
                    raise TypeError(f"state {path or 'root'}: {key!r} cannot be a key in a checkpoint")
            return {key: visit(item, f"{path}/{key}" if path else key) for key, item in value.items()}
        raise TypeError(f"state {path}: a {type(value).__name__} cannot be saved in a checkpoint")

    return visit(dict(state), ""), tensors


def join_state(tree: object, tensors: Mapping[str, Tensor], *, source: str) -> State:
    """The state whose halves these are; any disagreement between them is a CheckpointError."""
    left = dict(tensors)

    def visit(node: Any, path: str) -> Any:
        if isinstance(node, list):
            return [visit(item, f"{path}/{index}") for index, item in enumerate(node)]
        if not isinstance(node, dict):
            return node
        if node.keys() == {_TENSOR}:
            tensor = left.pop(path, None)
            if tensor is None:
                raise CheckpointError(f"{source}: {path} is missing")
            if _kind(tensor) != node[_TENSOR]:
                raise CheckpointError(f"{source}: {path} is {_kind(tensor)}, but the manifest says {node[_TENSOR]!r:.60}")
            return tensor
        if node.keys() == {_FLOAT}:
            if not isinstance(node[_FLOAT], str) or node[_FLOAT] not in ("nan", "inf", "-inf"):
                raise CheckpointError(f"{source}: {path} is no number in the manifest")
            return float(node[_FLOAT])
        return {key: visit(item, f"{path}/{key}" if path else key) for key, item in node.items()}

    if not isinstance(tree, dict):
        raise CheckpointError(f"{source}: the manifest does not describe it")
    try:
        state: State = visit(tree, "")
    except RecursionError:
        raise CheckpointError(f"{source}: the manifest is nested too deeply") from None
    if left:
        raise CheckpointError(f"{source}: holds {min(left)!r:.60}, which the manifest does not know")
    return state


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes `tensors` and waits until they are on the disk."""
    try:
        path.touch()
        mode = path.stat().st_mode  # as the user's umask has it; safetensors makes its file private
        save_file(dict(tensors), path)
        path.chmod(mode)
        sync(path)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise RunError(f"{path}: cannot be written ({' '.join(str(error).split())})") from error


def read_tensors(path: Path, expected: str | None = None) -> dict[str, Tensor]:
    """The tensors in the safetensors file `path`, whose digest must be `expected` where that is given."""
    if not is_regular(path):
        raise CheckpointError(f"{path}: is {'not a regular file' if os.path.lexists(path) else 'missing'}")
    try:
        if expected is not None and digest(path) != expected:
            raise CheckpointError(f"{path}: is damaged (its digest is not the manifest's)")
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is missing") from None
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:  # the last where the file vanishes after it was looked at
        raise CheckpointError(f"{path}: not a whole safetensors file ({reason(error)})") from None
