"""A preallocated ring of items: every field of one dtype is a view into one packed `[capacity, width]` table.

Gathering a batch is then one row copy per dtype, whatever the number of fields. On the CPU the tables are NumPy memory: its
row gather and its views cost a fraction of torch's for the small rows of vector observations, and large tables get huge pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.resources import require_memory

if TYPE_CHECKING:
    from rl_training.types import Array, Batch, State


class Field(NamedTuple):
    """One column of the ring: the shape of one item's value and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class _Column(NamedTuple):
    name: str
    key: tuple[slice, int | slice]  # its place in the packed rows
    shape: tuple[int, ...] | None  # what the slice is reshaped to, where that is needed


class _Table(NamedTuple):
    """All fields of one dtype, side by side: `packed` is `[capacity, width]`."""

    name: str
    columns: tuple[_Column, ...]
    packed: Tensor


class RingStorage:
    """`fields[name] = Field(shape, dtype)`; `capacity` items; the newest overwrite the oldest.

    `size` items are in use, in slots `0 … size-1`; `position` is the slot the next one goes to. `reserve` bytes are counted
    in the memory check for what the caller will allocate beside it.
    """

    def __init__(self, capacity: int, fields: Mapping[str, Field], device: str | torch.device = "cpu", *, reserve: int = 0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self.device = torch.device(device)
        self.fields = dict(fields)
        self.position = 0
        self.size = 0
        self.row_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in fields.values())
        require_memory(self.nbytes + reserve, device=str(self.device), what=f"a replay buffer of {capacity:,} items")
        self._on_cpu = self.device.type == "cpu"
        self._size_tensor = torch.zeros((), dtype=torch.int64, device=self.device)
        self._shapes: dict[int, dict[str, tuple[int, ...]]] = {}  # by number of items: what `add` expects
        self._tables = [self._allocate(dtype) for dtype in dict.fromkeys(field.dtype for field in fields.values())]
        self._host: list[tuple[Array, tuple[_Column, ...]]] = []  # the same memory, for NumPy
        if self._on_cpu:
            self._host = [(table.packed.numpy(), table.columns) for table in self._tables]
        self._host_columns = [(column.name, _view(rows, column)) for rows, columns in self._host for column in columns]

    @property
    def nbytes(self) -> int:
        return self.capacity * self.row_bytes

    @property
    def live_size(self) -> int | Tensor:
        """`size`; off the CPU as a tensor on the device, which sampling in a CUDA graph reads without asking the host."""
        return self.size if self._on_cpu else self._size_tensor

    def _allocate(self, dtype: torch.dtype) -> _Table:
        columns, width = [], 0
        for name, (shape, field_dtype) in self.fields.items():
            if field_dtype == dtype:
                start, width = width, width + math.prod(shape)
                place = slice(start, width) if shape else start
                columns.append(_Column(name, (slice(None), place), (-1, *shape) if len(shape) > 1 else None))
        size = (self.capacity, width)
        numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
        packed = torch.from_numpy(np.empty(size, numpy_dtype)) if self._on_cpu else torch.empty(size, dtype=dtype, device=self.device)
        return _Table(str(dtype).removeprefix("torch."), tuple(columns), packed)

    def add(self, values: Mapping[str, Array], count: int) -> int:
        """Write `count` items (`values[name]`: `[count, *shape]`, at most `capacity`) and return the slot of the first."""
        expected = self._shapes.get(count)
        if expected is None:
            expected = self._shapes[count] = {name: (count, *field.shape) for name, field in self.fields.items()}
        for name, shape in expected.items():
            if values[name].shape != shape:  # NumPy would broadcast a wrong shape in silence
                raise ValueError(f"{name} has shape {values[name].shape}, expected {shape}")
        start, stop = self.position, self.position + count
        if stop <= self.capacity:
            self._write(values, start, stop)
        else:
            head = self.capacity - start
            self._write({name: value[:head] for name, value in values.items()}, start, self.capacity)
            self._write({name: value[head:] for name, value in values.items()}, 0, stop - self.capacity)
        self.position = stop % self.capacity
        if self.size < self.capacity:
            self.size = min(stop, self.capacity)
            if not self._on_cpu:
                self._size_tensor.fill_(self.size)
        return start

    def _write(self, values: Mapping[str, Array], start: int, stop: int) -> None:
        if self._on_cpu:
            for name, view in self._host_columns:
                view[start:stop] = values[name]
            return
        for table in self._tables:  # one transfer per dtype
            rows = torch.empty((stop - start, table.packed.shape[1]), dtype=table.packed.dtype)
            for column in table.columns:
                _view(rows.numpy(), column)[...] = values[column.name]
            table.packed[start:stop].copy_(rows)

    def gather(self, indices: Array | Tensor) -> Batch:
        """Every field of the items in these slots: `[B, *shape]` tensors on the storage's device, free to keep and to change."""
        batch: Batch = {}
        if self._on_cpu:
            slots, from_numpy = as_array(indices), torch.from_numpy
            for host, columns in self._host:
                rows = host.take(slots, 0)
                for name, key, shape in columns:
                    batch[name] = from_numpy(rows[key] if shape is None else rows[key].reshape(shape))
            return batch
        for table in self._tables:
            taken = table.packed.index_select(0, torch.as_tensor(indices, device=self.device))
            for name, key, shape in table.columns:
                batch[name] = taken[key] if shape is None else taken[key].reshape(shape)
        return batch

    def values(self, name: str) -> Tensor:
        """One field of all items in use, [size, *shape], in the ring's own memory."""
        table, column = next((table, column) for table in self._tables for column in table.columns if column.name == name)
        view = table.packed[: self.size][column.key]
        return view if column.shape is None else view.reshape(column.shape)

    def state_dict(self, *, copy: bool = True) -> State:
        """Only the rows in use. With `copy=False` they share the ring's memory: for a reader that is done before the next `add`."""
        rows = {table.name: table.packed[: self.size] for table in self._tables}
        if copy:
            rows = {name: value.clone() for name, value in rows.items()}
        return {"position": self.position, "size": self.size, "rows": rows}

    def load_state_dict(self, state: State) -> None:
        size, position = int(state["size"]), int(state["position"])
        if size > self.capacity or (size < self.capacity and position != size):
            raise ValueError(f"{size:,} saved items, next slot {position:,}: they do not fit a capacity of {self.capacity:,}")
        for table in self._tables:
            rows = torch.as_tensor(state["rows"][table.name])
            if rows.shape != (size, table.packed.shape[1]):
                raise ValueError(f"saved {table.name} rows are {tuple(rows.shape)}, expected {(size, table.packed.shape[1])}")
            table.packed[:size].copy_(rows)
        self.size, self.position = size, position
        self._size_tensor.fill_(size)


def _view(rows: Array, column: _Column) -> Array:
    """The column of packed rows `[n, width]` as `[n, *shape]`, without a copy."""
    view: Array = rows[column.key]
    return view if column.shape is None else view.reshape(column.shape)


def as_array(value: Any) -> Array:
    """An array-like (array, tensor of any device, list, number) as a NumPy array, without a copy where there need be none."""
    if type(value) is np.ndarray:
        return value
    if isinstance(value, Tensor):
        if value.requires_grad:
            value = value.detach()
        array: Array = value.numpy() if value.is_cpu else value.cpu().numpy()
        return array
    return np.asarray(value)


def as_torch_dtype(dtype: Any) -> torch.dtype:
    """A torch dtype from a torch or NumPy dtype, its name, or a type such as `np.float32`."""
    return dtype if isinstance(dtype, torch.dtype) else torch.from_numpy(np.empty(0, np.dtype(dtype))).dtype
