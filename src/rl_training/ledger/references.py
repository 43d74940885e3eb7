"""What others published, as data: `assets/references/` has a file for each source, with its protocol and how its numbers were taken.

Results compare within one protocol only. So a reference says which preset it was played with and whether its numbers are training returns
or evaluations, and a suite that puts a run beside one is refused where the run is played otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.envs.atari.presets import DEFAULT
from rl_training.errors import ConfigError
from rl_training.experiment.explain import did_you_mean, one_line
from rl_training.experiment.files import read_json, reason

SHIPPED_REFERENCES = Path(__file__).resolve().parent.parent / "assets" / "references"
MAX_BYTES = 16 << 20

_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Values = Annotated[tuple[float, ...], Field(min_length=1), _as_tuple]
Point = Annotated[tuple[int, float], _as_tuple]
Curve = tuple[tuple[int, float], ...]
"""(step, return) of one run."""


class Reference(BaseModel):
    """One source. Its numbers are either `curves`, `[environment][row][run]`, a value every `steps_per_point` agent steps, or `figures`,
    `[environment][row]`, single values with the agent steps they were taken at."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    title: str
    source: str
    protocol: str
    settings: str = ""  # of its agents
    preset: str | None  # of env_kwargs; None: none of ours
    measure: Literal["training", "evaluation"]
    steps_per_point: Annotated[int, Field(ge=1)] = 1
    curves: dict[str, dict[str, Annotated[tuple[Values, ...], Field(min_length=1), _as_tuple]]] = Field(default_factory=dict)
    figures: dict[str, dict[str, Annotated[tuple[Point, ...], Field(min_length=1), _as_tuple]]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.curves) == bool(self.figures):
            raise ValueError("a reference has either curves or figures")
        return self

    @property
    def rows(self) -> dict[str, tuple[str, ...]]:
        """The rows it has of each environment."""
        return {env_id: tuple(rows) for env_id, rows in (self.curves or self.figures).items()}

    def runs(self, env_id: str, row: str) -> tuple[Curve, ...]:
        """The curve of each run; of figures one, through its few points."""
        if self.figures:
            return (self.figures[env_id][row],)
        every = self.steps_per_point
        return tuple(tuple((every * (place + 1), value) for place, value in enumerate(run)) for run in self.curves[env_id][row])

    def at(self, env_id: str, row: str, step: int) -> tuple[float, ...]:
        """What its runs had at `step`; () where it has no number there."""
        return tuple(value for run in self.runs(env_id, row) for place, value in run if place == step)


def shipped_references() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in SHIPPED_REFERENCES.glob("*.json")))


@lru_cache
def load_reference(name: str) -> Reference:
    if name not in shipped_references():
        raise ConfigError(f"{name}: no such reference{did_you_mean(name, shipped_references())}")
    try:
        return Reference(**read_json(SHIPPED_REFERENCES / f"{name}.json", limit=MAX_BYTES))
    except ValidationError as error:
        raise ConfigError(f"{name}: {one_line(error, unknown=lambda key: ' is not a key of a reference')}") from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{name}: cannot be read ({reason(error)})") from None


class Published(BaseModel):
    """Which published runs a run of ours stands beside: a row of a reference, on the run's own environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: str
    row: str

    @property
    def reference(self) -> Reference:
        return load_reference(self.source)

    @property
    def title(self) -> str:
        return f"{self.reference.title}: {self.row}"

    def check(self, env_id: str, env_kwargs: Mapping[str, Any]) -> None:
        """Like is compared with like: the reference has the row on this environment, and was played by the same preset."""
        known = self.reference.rows.get(env_id, ())
        if self.row not in known:
            raise ConfigError(f"{self.source} has no row {self.row} on {env_id}{did_you_mean(self.row, known)}")
        played = {"preset": DEFAULT, **env_kwargs}
        if played != {"preset": self.reference.preset}:
            raise ConfigError(
                f"{self.source} is of the preset {self.reference.preset}, the run is played by {played}: the two do not compare"
            )
