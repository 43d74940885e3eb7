"""The spaces a manifest describes, checked: a network is built by these numbers, whoever wrote them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.envs.stacking import MAX_STACK
from rl_training.errors import CheckpointError
from rl_training.experiment.explain import one_line

MAX_ELEMENTS = 10**8  # of one observation
MAX_ACTIONS = 10**6

_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Shape = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_ELEMENTS)], ...], Field(max_length=8), _as_tuple]
Counts = Annotated[tuple[Annotated[int, Field(ge=1, le=MAX_ACTIONS)], ...], _as_tuple]
Numbers = Annotated[tuple[float, ...], _as_tuple]
Dtype = Literal[
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"  # NumPy's names
]


class _Action(BaseModel):
    """What `describe_action_space` (envs/spaces.py) says."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    kind: str
    n: Annotated[int, Field(ge=1, le=MAX_ACTIONS)] | None = None
    shape: Shape | None = None
    nvec: Counts | None = None
    start: int | Annotated[tuple[int, ...], _as_tuple] | None = None
    low: Numbers | None = None
    high: Numbers | None = None

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        needed = {"discrete": ("n",), "multi_discrete": ("nvec", "start"), "box": ("low", "high")}.get(self.kind, ())
        for key in needed:
            if getattr(self, key) is None:
                raise ValueError(f"{key} is missing")
        if self.kind == "discrete" and isinstance(self.start, tuple):
            raise ValueError("start must be a whole number")
        if self.kind in ("multi_discrete", "box"):
            size = -1 if self.shape is None else math.prod(self.shape)
            if any(not isinstance(getattr(self, key), tuple) or len(getattr(self, key)) != size for key in needed):
                raise ValueError(f"{' and '.join(needed)} must have as many values as shape says")
        return self


class _Image(BaseModel):
    """What `ImageForm.describe` (envs/images.py) says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    shape: Shape
    dtype: Literal["uint8", "bool"]
    axes: Annotated[tuple[int, ...], Field(max_length=3), _as_tuple]
    high: Annotated[int, Field(ge=1, le=255)]

    @model_validator(mode="after")
    def _axes_agree(self) -> Self:
        if self.axes not in ((0, 1), (0, 1, 2), (2, 0, 1)) or len(self.axes) != len(self.shape):
            raise ValueError("axes must bring the channels of shape to the front")
        return self


class _Spaces(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    obs_shape: Shape
    obs_dtype: Dtype
    image: _Image | None = None
    frame_stack: Annotated[int, Field(ge=1, le=MAX_STACK)] = 1  # images in one observation
    action_masks: bool = False  # whether the environments say which actions are allowed
    action: _Action
    num_actions: Annotated[int, Field(ge=1, le=MAX_ACTIONS)] | None = None

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if math.prod(self.obs_shape) > MAX_ELEMENTS:
            raise ValueError(f"obs_shape must have at most {MAX_ELEMENTS:,} elements")
        if self.image is not None:
            moved = tuple(self.image.shape[axis] for axis in self.image.axes)
            channels = self.frame_stack * (1 if len(moved) == 2 else moved[0])
            if self.obs_shape != (channels, *moved[-2:]):
                stacked = "" if self.frame_stack == 1 else f" and frame_stack {self.frame_stack}"
                raise ValueError(f"obs_shape is {self.obs_shape}, but image.shape is {self.image.shape}{stacked}")
        if self.action.kind == "discrete" and self.num_actions != self.action.n:
            raise ValueError(f"num_actions is {self.num_actions}, but action.n is {self.action.n}")
        return self


def require_saved_spaces(spaces: Any, *, source: str) -> dict[str, Any]:
    """The spaces as they are, or a CheckpointError where no network can be built by them."""
    if not isinstance(spaces, dict):
        raise CheckpointError(f"{source}: spaces is missing")
    try:
        _Spaces.model_validate(spaces)
    except ValidationError as error:
        raise CheckpointError(f"{source}: {one_line(error, prefix='spaces.', unknown=lambda key: ' is not known')}") from None
    return spaces
