"""From what an environment gives to what a network reads: the wrappers that an exported file applies by itself.

`select`, `flatten` and `keep` look at one observation alone, so a graph can hold them. They go along from the network's side on, as far as
the first wrapper that cannot: one that remembers (`frame_stack`), or one of somebody's own. The rest is left to whoever feeds the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.envs.episodes import FAILURES
from rl_training.envs.wrappers import UNSEEN, WrapperCall, Wrappers
from rl_training.errors import UserError, one_line
from rl_training.experiment.saved_spaces import MAX_ELEMENTS, Shape
from rl_training.runtime.observations import WrappedObservations, selected_keys
from rl_training.runtime.policy import read_observation
from rl_training.types import Array

PURE = ("select", "flatten", "keep")
"""Wrappers that look at one observation alone."""

MAX_PARTS = 32
"""Inputs that one observation may become: a Dict of more is for its own wrappers."""

NUM_OWN = 8
"""Observations of the environment itself that a file is held against, beside those drawn from its space."""

_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
_Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Range: TypeAlias = Annotated[tuple[_Int64, _Int64], _as_tuple]


class Part(BaseModel):
    """One array of an observation, and the input it goes to: `obs` where there is only one, else `obs.` and where it stands."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    input: Annotated[str, Field(max_length=200, pattern=r"^obs(\..+)?$")]
    entry: Annotated[tuple[str | int, ...], Field(max_length=16), _as_tuple]  # keys and places, from the outermost Dict or Tuple inwards
    shape: Shape
    dtype: Literal["float32", "uint8", "int64", "bool"]
    ranges: Annotated[tuple[Range, ...], Field(min_length=1, max_length=MAX_ELEMENTS), _as_tuple] | None = None
    """Of every number, or one of all: its least and most value where the space has no other (one-hot, any other would be all zeros)."""

    @model_validator(mode="after")
    def _ranges_fit(self) -> Self:
        if self.ranges is not None and len(self.ranges) not in (1, math.prod(self.shape)):
            raise ValueError(f"ranges must be one, or {math.prod(self.shape)}, one for each number")
        empty = next((each for each in self.ranges or () if each[0] > each[1]), None)
        if empty is not None:
            raise ValueError(f"ranges must go from the least value to the most, got {list(empty)}")
        return self

    @property
    def name(self) -> str:
        """Within the observation: what torch.export's dict calls it."""
        return self.input.removeprefix("obs.")

    def read(self, value: Any) -> Array:
        """The array from what anybody gave; UserError where it is none of the space."""
        array = read_observation(value, self.shape, self.dtype)
        if self.ranges is not None:
            least, most = np.array(self.ranges, np.int64).T  # one of each, or one for every number
            outside = np.flatnonzero((array.ravel() < least) | (array.ravel() > most))
            if outside.size:
                low, high = self.ranges[outside[0] % len(self.ranges)]
                raise UserError(f"must be from {low} to {high}, got {array.flat[outside[0]]}")
        return array


Parts: TypeAlias = Annotated[tuple[Part, ...], Field(min_length=1, max_length=MAX_PARTS), _as_tuple]
PARTS: TypeAdapter[tuple[Part, ...]] = TypeAdapter(Parts)
"""What a file's metadata says of its observation."""


def one_part(shape: Sequence[int], dtype: str) -> tuple[Part, ...]:
    """An observation that is one array."""
    return (Part.model_validate({"input": "obs", "entry": (), "shape": tuple(shape), "dtype": dtype}),)


class Taken(NamedTuple):
    """The wrappers from number `first` on, which a graph can hold for observations of `space`; `calls` change what is seen."""

    first: int
    calls: tuple[WrapperCall, ...]


def may_be_taken(wrappers: Wrappers) -> Iterator[Taken]:
    """What could go along if the space allows it, the most first."""
    calls = wrappers.per_env
    first = len(calls)
    while first and calls[first - 1].name in (*PURE, *UNSEEN):
        first -= 1
    for start in range(first, len(calls)):
        if calls[start].name in PURE:
            yield Taken(start, tuple(call for call in calls[start:] if call.name in PURE))


class RawObservations:
    """Observations of the environment `env`, as it gives them, and the wrappers `calls` that make of them what a network reads.

    frame_stack: how many images the network reads at once. NotImplementedError where no graph can hold it.
    """

    def __init__(self, env: gym.Env[Any, Any], calls: Sequence[WrapperCall], *, frame_stack: int = 1) -> None:
        space = env.observation_space
        self._wrapped = WrappedObservations(space, env.action_space, Wrappers(tuple(calls)))
        self._own = _first_observations(env)
        self._selected, self._stack = selected_keys(calls), frame_stack
        self.calls = tuple(calls)[len(self._selected) :]
        for key in self._selected:
            space = cast("spaces.Dict", space)[key]
        self._read_space = space
        leaves = dict(_leaves(space))
        names = [".".join(map(str, entry)) for entry in leaves]
        if len(set(names)) < len(names):
            raise NotImplementedError("two entries of the observation have one name")
        if len(leaves) > MAX_PARTS or not leaves:
            raise NotImplementedError(f"an observation of {len(leaves)} parts")
        self.leaves = list(leaves.values())
        self.parts = tuple(
            Part(
                input="obs" if len(leaves) == 1 else f"obs.{name}",
                entry=(*self._selected, *entry),
                shape=(*(() if frame_stack == 1 else (frame_stack,)), *(leaf.shape or ())),
                dtype=_input_dtype(leaf),
                ranges=_ranges(leaf),
            )
            for (entry, leaf), name in zip(leaves.items(), names, strict=True)
        )

    def batch(self, size: int, rng: np.random.Generator) -> tuple[dict[str, Array], Array]:
        """Observations as they go into a file, by input, and the same ones as the package's own wrappers hand them to a network.

        Half of them are the environment's own, first ones of episodes; half are drawn from its space.
        """
        rows = [[self._one(rng) for _ in range(self._stack)] for _ in range(size)]
        inputs = {part.input: self._joined([[np.asarray(part_of(obs, part.entry)) for obs in row] for row in rows]) for part in self.parts}
        read = self._joined([[np.asarray(self._wrapped.wrap(obs, None, episode_start=True)) for obs in row] for row in rows])
        return {part.input: inputs[part.input].astype(part.dtype) for part in self.parts}, read

    def _one(self, rng: np.random.Generator) -> Any:
        if rng.random() < 0.5:
            return self._own[rng.integers(len(self._own))]
        drawn = _draw(self._read_space, rng)
        for key in reversed(self._selected):
            drawn = {key: drawn}  # of a Dict only what is read
        return drawn

    def _joined(self, rows: list[list[Array]]) -> Array:
        return np.stack([row[0] if self._stack == 1 else np.stack(row) for row in rows])


def _first_observations(env: gym.Env[Any, Any]) -> list[Any]:
    try:
        return [env.reset(seed=seed)[0] for seed in range(NUM_OWN)]
    except FAILURES as error:  # an environment may raise anything
        raise UserError(f"the environment cannot be reset: {one_line(error)}") from error


def part_of(obs: Any, entry: Sequence[str | int]) -> Any:
    """What stands at `entry` of a Dict's or a Tuple's observation; UserError where nothing does."""
    for depth, key in enumerate(entry):
        held = isinstance(obs, Mapping) and key in obs if isinstance(key, str) else isinstance(obs, (list, tuple)) and key < len(obs)
        if not held:
            raise UserError(f"has no {'.'.join(map(str, ('obs', *entry[: depth + 1])))}, got {obs!r:.60}")
        obs = obs[key]
    return obs


class Reader(nn.Module):
    """The wrappers as a graph: an observation's parts [B, ...] → what the network reads."""

    def __init__(self, raw: RawObservations, dtype: str) -> None:
        """dtype: of what the network reads."""
        super().__init__()
        self.names = [part.name for part in raw.parts]
        self._dtype = getattr(torch, dtype)
        self._kept = [call.arguments["indices"] for call in raw.calls if call.name == "keep"]
        self._flat = any(call.name == "flatten" for call in raw.calls)
        self._one_hot: list[tuple[Tensor, Tensor] | None] = [_one_hot(leaf) for leaf in raw.leaves]

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        tensors = [obs] if isinstance(obs, Tensor) else [obs[name] for name in self.names]
        if self._flat:
            tensors = [self._flattened(tensor, hot) for tensor, hot in zip(tensors, self._one_hot, strict=True)]
        read = tensors[0].to(self._dtype) if len(tensors) == 1 else torch.cat([tensor.to(self._dtype) for tensor in tensors], -1)
        for indices in self._kept:
            read = read[:, torch.tensor(indices)]
        return read

    @staticmethod
    def _flattened(tensor: Tensor, hot: tuple[Tensor, Tensor] | None) -> Tensor:
        flat = tensor.reshape(tensor.shape[0], -1)
        return flat if hot is None else flat[:, hot[0]] == hot[1]


def _one_hot(space: gym.Space[Any]) -> tuple[Tensor, Tensor] | None:
    """For each column of a one-hot vector, the number that is looked at and the value that it stands for."""
    if isinstance(space, spaces.Discrete):
        sizes, starts = [int(space.n)], [int(space.start)]
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, starts = ([int(value) for value in np.ravel(values)] for values in (space.nvec, space.start))
    else:
        return None
    columns = np.repeat(np.arange(len(sizes)), sizes)
    values = np.concatenate([start + np.arange(size) for size, start in zip(sizes, starts, strict=True)])
    return torch.from_numpy(columns), torch.from_numpy(values)


def _leaves(space: gym.Space[Any], entry: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], gym.Space[Any]]]:
    """The spaces of single arrays in the order that Gymnasium flattens them in, each with where it stands."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*entry, key))
    elif isinstance(space, spaces.Tuple):
        for place, part in enumerate(space.spaces):
            yield from _leaves(part, (*entry, place))
    elif isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        yield entry, space
    else:
        raise NotImplementedError(f"a {type(space).__name__} is no array")


def _input_dtype(space: gym.Space[Any]) -> Any:
    """As an image or a vector without wrappers comes in; whole numbers are int64, whatever the environment's own."""
    kind = np.dtype(space.dtype or np.float32)
    if kind in (np.uint8, np.bool_):
        return str(kind)
    return "float32" if np.issubdtype(kind, np.floating) else "int64"


def _ranges(space: gym.Space[Any]) -> tuple[Range, ...] | None:
    """None for a Box: environments pass its bounds, and a network reads any number."""
    if isinstance(space, spaces.MultiBinary):
        return ((0, 1),)
    if isinstance(space, spaces.Discrete):
        return ((int(space.start), int(space.start) + int(space.n) - 1),)
    if isinstance(space, spaces.MultiDiscrete):
        pairs = zip(np.ravel(space.start).tolist(), np.ravel(space.nvec).tolist(), strict=True)  # as Python counts: uint8 would wrap around
        ranges = tuple((start, start + size - 1) for start, size in pairs)
        return ranges[:1] if len(set(ranges)) == 1 else ranges or None
    return None


def _draw(space: gym.Space[Any], rng: np.random.Generator) -> Any:
    """An element; of a Box near the middle, since bounds may be as wide as float32."""
    if isinstance(space, spaces.Dict):
        return {key: _draw(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_draw(part, rng) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(rng.integers(int(space.start), int(space.start) + int(space.n)))
    if isinstance(space, spaces.MultiDiscrete):
        return (space.start + rng.integers(0, space.nvec)).astype(space.dtype)
    assert isinstance(space, (spaces.Box, spaces.MultiBinary))
    if np.issubdtype(space.dtype, np.floating) and isinstance(space, spaces.Box):
        return np.clip(rng.standard_normal(space.shape), space.low, space.high).astype(space.dtype)
    low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (0, 1)
    wide = np.clip([np.broadcast_to(low, space.shape), np.broadcast_to(high, space.shape)], -1000, 1000).astype(np.int64)
    return rng.integers(wide[0], wide[1], endpoint=True).astype(space.dtype)
