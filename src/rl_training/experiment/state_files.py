"""A part's state as two halves: tensors in a safetensors file, everything else as JSON. Nothing is ever unpickled.

    {"weights": tensor, "step": 3}   →   safetensors {"weights": tensor}   +   JSON {"weights": {"$tensor": "float32[2,2]"}, "step": 3}

A tensor's name in the file is its path joined by "/": the JSON half names no file and no tensor, so it can point nowhere else.
Equal states give equal bytes: tensors are ordered by their elements' size and name, and no metadata is written.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rl_training.errors import CheckpointError
from rl_training.experiment.files import digest, is_regular, reason, sync
from rl_training.types import State

_TENSOR, _FLOAT = "$tensor", "$float"
PIECE = 1 << 26  # bytes of a tensor that are brought to the host, written and digested at a time
_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
}
"""As safetensors names them."""


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}".replace(" ", "")


def _tensor(value: Tensor | np.ndarray[Any, np.dtype[Any]]) -> Tensor:
    """Its elements in a row, on whatever device it is: a large one is not copied before it is written."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.require(value, requirements=("C", "W")))
    return value.detach().contiguous()


def split_state(state: State) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON half and the tensors of `state`, by path. They may share the state's memory: write them at once."""
    tensors: dict[str, Tensor] = {}

    def visit(value: Any, path: str) -> Any:
        if isinstance(value, (Tensor, np.ndarray)):
            tensors[path] = _tensor(value)
            return {_TENSOR: _kind(tensors[path])}
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


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes `tensors` as a safetensors file, waits until they are on the disk, and returns the file's digest.

    In pieces, from wherever they are: a replay of many gigabytes is written, and its digest made, without a copy of it in memory.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that each is aligned
    header, offset = {}, 0
    for name, tensor in ordered:
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    found = hashlib.sha256()
    with path.open("wb") as file:
        head = memoryview(len(text).to_bytes(8, "little") + text)
        for piece in chain((head,), *(_pieces(tensor) for _, tensor in ordered)):
            file.write(piece)
            found.update(piece)
    sync(path)
    return found.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """Its bytes, one piece after the other."""
    if tensor.nbytes:
        flat = tensor.reshape(-1).view(torch.uint8)
        for begin in range(0, len(flat), PIECE):
            yield flat[begin : begin + PIECE].cpu().numpy().data


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
