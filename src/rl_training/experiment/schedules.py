"""What a config may say in place of a number that can change while a run goes on: `{schedule: cosine, start: 1e-3, end: 1e-5}`.

What these compute is in algorithms/schedules.py, and runtime/schedules.py makes the one of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import core_schema
from typing_extensions import Self

from rl_training.errors import ConfigError
from rl_training.experiment.explain import did_you_mean, one_line, shown

Steps = Annotated[int, Field(ge=0, le=10**15)]
_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Point = Annotated[tuple[Steps, float], _as_tuple]

_CALLABLE = "callable:"
_NAMED: dict[str, Callable[[int], float]] = {}


class Schedule(BaseModel):
    """One of the kinds below. `numbers` are the values it takes at its corners."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    kind: ClassVar[str]

    def numbers(self) -> Iterator[tuple[str, float]]:
        """Each number that it may not leave the key's range with, by its place."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """As YAML and JSON hold it; `read_schedule` gives it back."""
        return {"schedule": self.kind, **self.model_dump(mode="json")}


class Constant(Schedule):
    """`value` throughout, but for a warm-up."""

    kind = "constant"
    value: float
    warmup: Steps = 0

    def numbers(self) -> Iterator[tuple[str, float]]:
        yield "value", self.value


class Falling(Schedule):
    """From `start` to `end`: over the first `fraction` of the total that schedules run over, `warmup` steps of it in a line from 0."""

    start: float
    end: float = 0.0
    fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    warmup: Steps = 0

    def numbers(self) -> Iterator[tuple[str, float]]:
        yield from (("start", self.start), ("end", self.end))


class Linear(Falling):
    kind = "linear"


class Cosine(Falling):
    kind = "cosine"


class Piecewise(Schedule):
    """Straight lines between `points`, pairs of an environment step and a value."""

    kind = "piecewise"
    points: Annotated[tuple[Point, ...], Field(min_length=1, max_length=1_000), _as_tuple]

    @model_validator(mode="after")
    def _steps_do_not_fall(self) -> Self:
        steps = [step for step, _ in self.points]
        if steps != sorted(steps):
            raise ValueError(f"points must be in the order of their steps, got {shown(steps)}")
        return self

    def numbers(self) -> Iterator[tuple[str, float]]:
        yield from ((f"points.{index}.1", value) for index, (_, value) in enumerate(self.points))


class Named(Schedule):
    """A callable from environment steps to a value, by the name it is registered under."""

    kind = "named"
    name: str

    def numbers(self) -> Iterator[tuple[str, float]]:
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        return {"schedule": self.name}


KINDS: dict[str, type[Schedule]] = {kind.kind: kind for kind in (Constant, Linear, Cosine, Piecewise)}


def register_schedule(name: str, schedule: Callable[[int], float]) -> None:
    """Adds a schedule, environment steps → value, for `learning_rate: {schedule: name}` in every config."""
    if name in KINDS or name in _NAMED or name.startswith(_CALLABLE):
        raise ConfigError(f"schedule {name!r} is already registered, or reserved")
    _NAMED[name] = schedule


def named_callables(values: Any) -> Any:
    """`values` with each callable in it as `{schedule: name}`, as a config can hold it. Equal names of different ones are told apart."""
    if not isinstance(values, Mapping):
        return values
    return {key: {"schedule": _name_of(value)} if callable(value) else value for key, value in values.items()}


def _name_of(schedule: Callable[[int], float]) -> str:
    first = name = _CALLABLE + getattr(schedule, "__qualname__", type(schedule).__qualname__)
    number = 1
    while _NAMED.setdefault(name, schedule) is not schedule:
        number += 1
        name = f"{first}#{number}"
    return name


def named_schedule(name: str) -> Callable[[int], float] | None:
    """The callable of that name; None where nobody has given it here."""
    return _NAMED.get(name)


def read_schedule(value: Mapping[str, Any], *, low: float, high: float) -> Schedule:
    """The schedule in `value`, all of whose numbers lie in [low, high]; else a ValueError whose text goes on after the key."""
    kind = value.get("schedule")
    if kind is None:
        raise ValueError(f"must be a number, or a mapping that says which schedule: {', '.join(KINDS)}; got {shown(dict(value))}")
    if not isinstance(kind, str) or (kind not in KINDS and kind not in _NAMED and not kind.startswith(_CALLABLE)):
        known = [*KINDS, *(name for name in _NAMED if not name.startswith(_CALLABLE))]
        raise ValueError(f".schedule has no {shown(kind)}{did_you_mean(kind, known)}")
    cls = KINDS.get(kind, Named)
    inner = {key: each for key, each in value.items() if key != "schedule"}
    try:
        schedule = cls(**inner) if cls is not Named else Named(name=kind, **inner)
    except ValidationError as error:
        unknown = f" is not a key of a {kind} schedule"
        text = one_line(error, prefix=".", unknown=lambda key: unknown + did_you_mean(key, cls.model_fields.keys() - {"name"}))
        raise ValueError(text) from None
    for place, number in schedule.numbers():
        if not low <= number <= high:
            raise ValueError(f".{place} must be {f'>= {low:g}' if number < low else f'<= {high:g}'}, got {number:g}")
    return schedule


@dataclass(frozen=True)
class OrSchedule:
    """Marks a key that takes `number`, or a schedule whose values stay in [low, high]."""

    number: Any
    low: float = 0.0
    high: float = float("inf")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        def read(value: Any, as_number: Callable[[Any], Any]) -> Any:
            if isinstance(value, Schedule):
                return value
            return read_schedule(value, low=self.low, high=self.high) if isinstance(value, Mapping) else as_number(value)

        return core_schema.no_info_wrap_validator_function(read, handler.generate_schema(self.number))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        kinds = {"type": "object", "properties": {"schedule": {"type": "string", "examples": list(KINDS)}}, "required": ["schedule"]}
        return {"anyOf": [handler(schema["schema"]), kinds]}
