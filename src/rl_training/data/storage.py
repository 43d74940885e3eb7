"""A preallocated ring of items, each one row of a single packed table whatever the number and dtypes of its fields.

Gathering a batch is then one copy of B rows, and its fields are views of them. On the CPU the table is NumPy memory: its row gather
and its views cost a fraction of torch's for the small rows of vector observations, and large tables get huge pages.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.resources import require_memory

if TYPE_CHECKING:
    from rl_training.types import Array, Batch, State


_WORD = np.dtype(np.int64)


class Field(NamedTuple):
    """One column of the ring: the shape of one item's value and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class _Column(NamedTuple):
    """A field's place in rows that are viewed as its dtype, and what that slice is reshaped to, where that is needed."""

    name: str
    key: tuple[slice, int | slice]
    shape: tuple[int, ...] | None


class _Group(NamedTuple):
    """All fields of one dtype."""

    dtype: torch.dtype
    numpy_dtype: np.dtype[Any]
    columns: tuple[_Column, ...]
    rows: str  # the name of whole rows that are viewed as this dtype


class RingStorage:
    """`fields[name] = Field(shape, dtype)`; `capacity` items; the newest overwrite the oldest.

    A row is whole 8-byte words, the fields with the largest elements first, so that each is aligned and only the row's end is padded.
    `size` items are in use, in slots `0 … size-1`; `position` is the slot the next one goes to. `reserve` bytes are counted
    in the memory check for what the caller will allocate beside it.
    """

    def __init__(self, capacity: int, fields: Mapping[str, Field], device: str | torch.device = "cpu", *, reserve: int = 0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self.device = torch.device(device)
        self.fields = dict(sorted(fields.items(), key=lambda item: -item[1].dtype.itemsize))
        self.position = 0
        self.size = 0
        self.row_bytes, self._groups = self._lay_out()
        require_memory(self.nbytes + reserve, device=str(self.device), what=f"a replay buffer of {capacity:,} items")
        self.on_cpu = uses_numpy(self.device)
        shape = (capacity, self.row_bytes // 8)
        self._table = torch.from_numpy(np.zeros(shape, np.int64)) if self.on_cpu else torch.zeros(shape, dtype=torch.int64, device=device)
        self._size_tensor = torch.zeros((), dtype=torch.int64, device=self.device)
        self._shapes: dict[int, dict[str, tuple[int, ...]]] = {}  # by number of items: what `add` expects
        # the same memory, for NumPy
        self._host = self._table.numpy() if self.on_cpu else np.empty((0, 0), np.int64)
        self._host_columns = list(_host_columns(self._groups, self._host).items()) if self.on_cpu else []
        self._staging = None if self.on_cpu else _PackedStaging(self._groups, self.row_bytes, self.device)
        self._reads = self._groups

    def _lay_out(self) -> tuple[int, list[_Group]]:
        groups, offset = [], 0  # in bytes
        for dtype in dict.fromkeys(field.dtype for field in self.fields.values()):
            columns = []
            for name, (shape, _) in ((name, field) for name, field in self.fields.items() if field.dtype == dtype):
                start = offset // dtype.itemsize
                stop = start + math.prod(shape)
                columns.append(
                    _Column(name, (slice(None), slice(start, stop) if shape else start), (-1, *shape) if len(shape) > 1 else None)
                )
                offset = stop * dtype.itemsize
            rows = f"rows as {str(dtype).removeprefix('torch.')}"
            groups.append(_Group(dtype, numpy_dtype(dtype), tuple(columns), rows))
        return -(-offset // 8) * 8, groups

    def read_only(self, names: Collection[str]) -> None:
        """Let `gather` return these fields and no others."""
        chosen = [group._replace(columns=tuple(column for column in group.columns if column.name in names)) for group in self._groups]
        self._reads = [group for group in chosen if group.columns]

    @property
    def nbytes(self) -> int:
        return self.capacity * self.row_bytes

    @property
    def live_size(self) -> int | Tensor:
        """`size`; off the CPU as a tensor on the device, which sampling in a CUDA graph reads without asking the host."""
        return self.size if self.on_cpu else self._size_tensor

    def add(self, values: Mapping[str, Array], count: int) -> int:
        """Write `count` items (`values[name]`: `[count, *shape]`, at most `capacity`) and return the slot of the first.

        What `values` has beside the fields is passed over."""
        expected = self._shapes.get(count)
        if expected is None:
            expected = self._shapes[count] = {name: (count, *field.shape) for name, field in self.fields.items()}
        for name, shape in expected.items():
            given = values.get(name)
            if given is None:
                raise ValueError(f"the items have no {name}, which this buffer holds")
            if given.shape != shape:  # NumPy would broadcast a wrong shape in silence
                raise ValueError(f"{name} has shape {given.shape}, expected {shape}")
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
            if not self.on_cpu:
                self._size_tensor.fill_(self.size)
        return start

    def skip(self, count: int) -> None:
        """Leave `count` slots as they are: for items that the same `add` would overwrite."""
        self.position = (self.position + count) % self.capacity

    def _write(self, values: Mapping[str, Array], start: int, stop: int) -> None:
        if self.on_cpu:
            for name, column in self._host_columns:
                column[start:stop] = values[name]
            return
        assert self._staging is not None  # off the CPU there is one
        self._table[start:stop].copy_(self._staging.pack(values, stop - start), non_blocking=True)  # one transfer

    def gather(self, indices: Any, batch: Batch) -> None:
        """Put the fields of the items in these slots into `batch`: `[B, *shape]` on the storage's device, free to keep and to change.

        indices: [B], an array or a tensor on the device.
        """
        if self.on_cpu:
            rows, from_numpy = self._host.take(indices, 0), torch.from_numpy
            for _, numpy_dtype, columns, _ in self._reads:
                part = rows if numpy_dtype is _WORD else rows.view(numpy_dtype)
                for name, key, shape in columns:
                    batch[name] = from_numpy(part[key] if shape is None else part[key].reshape(shape))
            return
        taken = self._table.index_select(0, indices)
        for group in self._reads:
            for column in group.columns:
                batch[column.name] = _field(taken, group.dtype, column)

    def gather_rows(self, indices: Any, batch: Batch) -> None:
        """`gather` without the fields: the rows [B, ...] once for each dtype. On the CPU the views cost more than the rows do.

        A function that is compiled takes them as they are and finds the fields itself (`unpack`), at no cost.
        """
        if self.on_cpu:
            rows = self._host.take(indices, 0)
            for _, numpy_dtype, _, name in self._reads:
                batch[name] = torch.from_numpy(rows if numpy_dtype is _WORD else rows.view(numpy_dtype))
            return
        taken = self._table.index_select(0, indices)
        batch.update({group.rows: taken.view(group.dtype) for group in self._reads})

    def unpack(self, batch: Batch) -> Batch:
        """A batch with the fields that `gather` would have put in the place of its rows; one that has none, as it is.

        Compiled, it keeps to the fields that were read when it was: a transition buffer fixes them at its first transition.
        """
        fields = dict(batch)
        for group in self._reads:
            rows = fields.pop(group.rows, None)
            if rows is not None:
                fields.update({column.name: _field(rows, group.dtype, column) for column in group.columns})
        return fields

    def values(self, name: str) -> Tensor:
        """One field of all items in use, [size, *shape], in the ring's own memory."""
        dtype, column = next((group.dtype, column) for group in self._groups for column in group.columns if column.name == name)
        return _field(self._table[: self.size], dtype, column)

    def _fingerprint(self) -> list[str]:
        return [f"{name} {str(dtype).removeprefix('torch.')}{list(shape)}" for name, (shape, dtype) in self.fields.items()]

    def state_dict(self, *, copy: bool = True) -> State:
        """Only the rows in use. With `copy=False` they share the ring's memory: for a reader that is done before the next `add`."""
        rows = self._table[: self.size]
        return {"position": self.position, "size": self.size, "fields": self._fingerprint(), "rows": rows.clone() if copy else rows}

    def load_state_dict(self, state: State) -> None:
        if list(state["fields"]) != self._fingerprint():
            raise ValueError(f"saved items have the fields {', '.join(state['fields'])}; expected {', '.join(self._fingerprint())}")
        size, position = int(state["size"]), int(state["position"])
        fits = position == size if size < self.capacity else 0 <= position < self.capacity
        if not 0 <= size <= self.capacity or not fits:
            raise ValueError(f"{size:,} saved items, next slot {position:,}: they do not fit a capacity of {self.capacity:,}")
        self._table[:size].copy_(torch.as_tensor(state["rows"]))
        self.size, self.position = size, position
        self._size_tensor.fill_(size)


def uses_numpy(device: torch.device) -> bool:
    """Whether replay on this device lives in NumPy memory; elsewhere it is tensors, and nothing in a sample or an update asks the host."""
    return device.type == "cpu"


class Staging:
    """Rows of words on their way to the device: page-locked, so that a copy from them does not wait for what the device is doing.

    Rows are handed out one after the other; only when they start over must the copies from them be done.
    """

    BYTES = 1 << 22

    def __init__(self, words: int, device: torch.device) -> None:
        self._words, self._device = words, device
        self._allocate(max(1, self.BYTES // (8 * words)))

    def _allocate(self, rows: int) -> None:
        self.rows = torch.zeros((rows, self._words), dtype=torch.int64, pin_memory=self._device.type == "cuda")
        self._next = 0

    def reserve(self, count: int) -> slice:
        """So many of the rows, which are the caller's until the staging has gone around."""
        if self._next + count > len(self.rows):
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            self._next = 0
            if count > len(self.rows):
                self._allocate(count)
        self._next += count
        return slice(self._next - count, self._next)


class _PackedStaging(Staging):
    """Items on their way to the device."""

    def __init__(self, groups: list[_Group], row_bytes: int, device: torch.device) -> None:
        self._groups = groups
        super().__init__(row_bytes // 8, device)

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        self._columns = list(_host_columns(self._groups, self.rows.numpy()).items())

    def pack(self, values: Mapping[str, Array], count: int) -> Tensor:
        """The items as rows [count, words]."""
        taken = self.reserve(count)
        for name, column in self._columns:
            column[taken] = values[name]
        return self.rows[taken]


def _host_columns(groups: list[_Group], rows: Array) -> dict[str, Array]:
    """Every field of rows `[n, words]` as `[n, *shape]`, without a copy."""
    views = {column.name: (rows.view(group.numpy_dtype)[column.key], column.shape) for group in groups for column in group.columns}
    return {name: view if shape is None else view.reshape(shape) for name, (view, shape) in views.items()}


def _field(rows: Tensor, dtype: torch.dtype, column: _Column) -> Tensor:
    view = (rows if rows.dtype is dtype else rows.view(dtype))[column.key]
    return view if column.shape is None else view.reshape(column.shape)


def as_array(value: Any) -> Array:
    """An array-like (array, tensor of any device, list, number) as a NumPy array, without a copy where there need be none."""
    if type(value) is np.ndarray:
        return value
    if type(value) is Tensor or isinstance(value, Tensor):  # the first is several times faster
        array: Array = value.detach().cpu().numpy() if value.requires_grad or not value.is_cpu else value.numpy()
        return array
    return np.asarray(value)


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


def as_torch_dtype(dtype: Any) -> torch.dtype:
    """A torch dtype from a torch or NumPy dtype, its name, or a type such as `np.float32`."""
    return dtype if isinstance(dtype, torch.dtype) else torch.from_numpy(np.empty(0, np.dtype(dtype))).dtype
